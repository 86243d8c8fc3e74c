"""One call of an exchange: checks, the plan kept from the last such call, and the way it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import _C
from .errors import InvalidArgument
from .fallback import Request, make_record
from .group import Group

_ELEMENT_BYTES = (1, 2, 4, 8)

Splits = Sequence[int] | None


@dataclass(frozen=True)
class _Prepared:
    """What a call needs and its arguments alone decide; kept by the group."""

    plan: _C.Plan
    output_sizes: list[list[int]]
    requests: list[Request]
    record: bytes


def run_call(
    group: Group,
    op: str,
    inputs: tuple[torch.Tensor, ...],
    scatter_dim: int,
    gather_dim: int,
    scatter_splits: Splits,
    gather_splits: Splits,
    out: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Collective: one exchange of `inputs`, all with the same dims and splits; the results, or `[out]`."""
    scatter_splits = None if scatter_splits is None else tuple(scatter_splits)
    gather_splits = None if gather_splits is None else tuple(gather_splits)
    for x in inputs:
        if x.layout is not torch.strided:
            raise InvalidArgument(f"{op}: a tensor of layout {x.layout} has no strides; only strided tensors are moved")
    key = (
        op,
        scatter_dim,
        gather_dim,
        scatter_splits,
        gather_splits,
        tuple([(x.shape, x.stride(), x.dtype, x.device) for x in inputs]),
        None if out is None else (out.shape, out.stride(), out.dtype, out.device, out.layout),
    )
    prepared = group.plans.get(key)
    if prepared is None:
        prepared = _prepare(group, op, inputs, scatter_dim, gather_dim, scatter_splits, gather_splits, out)
        group.keep_plan(key, prepared)
    if out is None:
        results = [x.new_empty(sizes) for x, sizes in zip(inputs, prepared.output_sizes, strict=True)]
    else:
        _check_no_overlap(op, inputs[0], out)
        results = [out]
    native = group.native
    if native is None:
        assert group.fallback_reason is not None
        _over_torch(group, prepared, inputs, results, group.fallback_reason)
    elif inputs[0].device.type != "cpu":
        reason = f"a {inputs[0].device.type} tensor on transport {group.transport!r}, which serves CPU tensors"
        _over_torch(group, prepared, inputs, results, reason)
    else:
        sources = [x.data_ptr() for x in inputs]
        window = None if out is None else group.windows.get(out.data_ptr())
        if window is not None and out is not None and out.is_contiguous():
            native.exchange(prepared.plan, sources, [out.data_ptr()], [window[0]])
        else:
            native.exchange(prepared.plan, sources, [result.data_ptr() for result in results])
    return results


def _over_torch(
    group: Group, prepared: _Prepared, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], reason: str
) -> None:
    group.check()
    group.count_fallback(reason)
    try:
        group.wire.exchange(prepared.plan.text, prepared.record, prepared.requests, inputs, results)
    except BaseException as error:
        if group.native is not None:
            group.native.abort(f"{type(error).__name__}: {error}")
        raise


def _prepare(
    group: Group,
    op: str,
    inputs: tuple[torch.Tensor, ...],
    scatter_dim: int,
    gather_dim: int,
    scatter_splits: Splits,
    gather_splits: Splits,
    out: torch.Tensor | None,
) -> _Prepared:
    """Raises InvalidArgument; the planner's own checks serve both paths, so their texts are the same."""
    _check_tensors(op, inputs)
    out_strides = None if out is None else out.stride() if out.layout is torch.strided else None
    tensors = [
        (
            list(x.shape),
            list(x.stride()),
            x.itemsize,
            str(x.dtype).removeprefix("torch."),
            scatter_dim,
            gather_dim,
            scatter_splits,
            gather_splits,
            out_strides if out_strides is None else list(out_strides),
        )
        for x in inputs
    ]
    if out is not None:
        without_out = _C.plan(group.rank, group.size, op, [(*tensor[:-1], None) for tensor in tensors])
        _check_out(op, inputs[0], out, without_out.output_sizes[0])
    plan = _C.plan(group.rank, group.size, op, tensors) if group.native is None else group.native.plan(op, tensors)
    requests = [Request.resolve(x, group.size, scatter_dim, gather_dim, scatter_splits, gather_splits) for x in inputs]
    return _Prepared(plan, plan.output_sizes, requests, make_record(plan.text))


def _check_tensors(op: str, inputs: Sequence[torch.Tensor]) -> None:
    for x in inputs:
        if x.is_quantized:
            raise InvalidArgument(f"{op}: quantized tensors are not moved; pass x.int_repr()")
        if x.itemsize not in _ELEMENT_BYTES:
            raise InvalidArgument(
                f"{op}: {x.dtype} has elements of {x.itemsize} bytes, but 1, 2, 4 or 8 can be moved"
                + ("; pass torch.view_as_real(x).flatten(-2)" if x.is_complex() else "")
            )
        if x.device != inputs[0].device:
            raise InvalidArgument(f"{op}: the tensors are on different devices, {inputs[0].device} and {x.device}")


def _check_out(op: str, x: torch.Tensor, out: torch.Tensor, sizes: Sequence[int]) -> None:
    if out.layout is not torch.strided:
        raise InvalidArgument(f"{op}: out has layout {out.layout}, but has to be strided")
    if list(out.shape) != list(sizes):
        raise InvalidArgument(f"{op}: out has shape {list(out.shape)}, but the result has {list(sizes)}")
    if out.dtype != x.dtype or out.device != x.device:
        raise InvalidArgument(f"{op}: out is {out.dtype} on {out.device}, but the result is {x.dtype} on {x.device}")
    if _overlaps_itself(out):
        raise InvalidArgument(
            f"{op}: out of shape {list(out.shape)} and strides {list(out.stride())} has elements that share memory"
        )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """True unless sorting the dims by stride proves that no two elements share memory."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _check_no_overlap(op: str, x: torch.Tensor, out: torch.Tensor) -> None:
    if x.numel() == 0 or out.numel() == 0:
        return
    x_start, out_start = x.data_ptr(), out.data_ptr()
    if x_start < out_start + _extent_bytes(out) and out_start < x_start + _extent_bytes(x):
        raise InvalidArgument(f"{op}: out and the input lie in the same memory; the result would overwrite the input")


def _extent_bytes(tensor: torch.Tensor) -> int:
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (last + 1) * tensor.itemsize
