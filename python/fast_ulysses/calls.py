"""One call of an exchange: checks, the plan kept from the last such call, and the way it goes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from . import _C
from .cuts import Cut
from .errors import InvalidArgument
from .fallback import Request, make_record
from .group import Group

_ELEMENT_BYTES = (1, 2, 4, 8)

# Smaller results come from torch's allocator, which reuses them itself.
_POOLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Move:
    """What happens to one tensor of an exchange: which dims are traded, and how each is cut."""

    scatter_dim: int
    gather_dim: int
    scatter: Cut
    gather: Cut


@dataclass(frozen=True)
class Prepared:
    """What a call needs and its arguments alone decide; kept by the group."""

    plan: _C.Plan
    output_sizes: list[list[int]]
    requests: list[Request]
    record: bytes


def prepare(
    group: Group, op: str, key: object, inputs: tuple[torch.Tensor, ...], moves: Callable[[], Sequence[Move]]
) -> Prepared:
    """Local: the plan of a call, from the last call with equal arguments or made now. Raises InvalidArgument.

    key: what decides `moves` besides the inputs' own layouts.
    """
    for x in inputs:
        if x.layout is not torch.strided:
            raise InvalidArgument(f"{op}: a tensor of layout {x.layout} has no strides; only strided tensors are moved")
    full_key = (op, key, *[(x.shape, x.stride(), x.dtype, x.device) for x in inputs])
    prepared = group.plans.get(full_key)
    if prepared is None:
        prepared = _prepare(group, op, inputs, moves(), None)
        group.keep_plan(full_key, prepared)
    found: Prepared = prepared
    return found


def run(
    group: Group, prepared: Prepared, inputs: Sequence[torch.Tensor], shape: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """Collective: the exchange, into new tensors; `shape` is that of a single result, if not the plan's own."""
    sizes = prepared.output_sizes if shape is None else [shape]
    results = [_new_result(group, x, size) for x, size in zip(inputs, sizes, strict=True)]
    native = group.native
    if native is not None and inputs[0].is_cpu:
        native.exchange(prepared.plan, [x.data_ptr() for x in inputs], [result.data_ptr() for result in results])
    else:
        _over_torch(group, prepared, inputs, results)
    return results


def run_into(
    group: Group, op: str, key: object, x: torch.Tensor, out: torch.Tensor, moves: Callable[[], Sequence[Move]]
) -> None:
    """Collective: the exchange of one tensor into `out`."""
    if x.layout is not torch.strided:
        raise InvalidArgument(f"{op}: a tensor of layout {x.layout} has no strides; only strided tensors are moved")
    layouts = (x.shape, x.stride(), x.dtype, x.device, out.shape, out.stride(), out.dtype, out.device, out.layout)
    full_key = (op, key, layouts)
    prepared = group.plans.get(full_key)
    if prepared is None:
        prepared = _prepare(group, op, (x,), moves(), out)
        group.keep_plan(full_key, prepared)
    _check_no_overlap(op, x, out)
    native = group.native
    if native is None or not x.is_cpu:
        _over_torch(group, prepared, [x], [out])
        return
    # The address of an empty tensor reads as 0, that of its storage does not: the ranks have to decide alike.
    window = group.windows.get(out.data_ptr() or out.untyped_storage().data_ptr())
    if window is not None and out.is_contiguous():
        native.exchange(prepared.plan, [x.data_ptr()], [window[1].data_ptr()], [window[0]])
    else:
        native.exchange(prepared.plan, [x.data_ptr()], [out.data_ptr()])


def begin(
    group: Group, prepared: Prepared, x: torch.Tensor, shape: Sequence[int]
) -> tuple[torch.Tensor, _C.PendingExchange | None]:
    """Collective, returns at once on the native path; over torch.distributed the exchange is done on return."""
    if group.native is None or not x.is_cpu:
        return run(group, prepared, [x], shape)[0], None
    result = _new_result(group, x, shape)
    return result, group.native.exchange_async(prepared.plan, [x.data_ptr()], [result.data_ptr()])


def _new_result(group: Group, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    count = math.prod(sizes)
    if group.native is None or count * x.itemsize < _POOLED_BYTES or not x.is_cpu:
        return x.new_empty(sizes)
    storage = torch.from_dlpack(_C.take_result(count * x.itemsize)).untyped_storage()
    result = x.new_empty(0)
    result.set_(storage, 0, sizes, _contiguous_strides(sizes))  # not a view: it may be changed in place under autograd
    return result


def _contiguous_strides(sizes: Sequence[int]) -> list[int]:
    strides = list(itertools.accumulate(reversed(sizes[1:]), lambda stride, size: stride * max(size, 1), initial=1))
    return strides[::-1]


def _over_torch(
    group: Group, prepared: Prepared, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> None:
    group.check()
    reason = group.fallback_reason
    if reason is None:
        reason = f"a {inputs[0].device.type} tensor on transport {group.transport!r}, which serves CPU tensors"
    group.count_fallback(reason)
    try:
        seen = [result.view(sizes) for result, sizes in zip(results, prepared.output_sizes, strict=True)]
        group.wire.exchange(prepared.plan.text, prepared.record, prepared.requests, inputs, seen)
    except BaseException as error:
        if group.native is not None:
            group.native.abort(f"{type(error).__name__}: {error}")
        raise


def _prepare(
    group: Group, op: str, inputs: tuple[torch.Tensor, ...], moves: Sequence[Move], out: torch.Tensor | None
) -> Prepared:
    """Raises InvalidArgument; the planner's own checks serve both paths, so their texts are the same."""
    _check_tensors(op, inputs)
    tensors = [_tensor_args(x, move, None) for x, move in zip(inputs, moves, strict=True)]
    if out is not None:
        _check_out(op, inputs[0], out, _C.plan(group.rank, group.size, op, tensors).output_sizes[0])
        tensors = [_tensor_args(inputs[0], moves[0], out)]
    plan = _C.plan(group.rank, group.size, op, tensors)
    requests = [
        Request.resolve(x, group.size, move.scatter_dim, move.gather_dim, move.scatter, move.gather)
        for x, move in zip(inputs, moves, strict=True)
    ]
    return Prepared(plan, plan.output_sizes, requests, make_record(plan.text))


def _tensor_args(x: torch.Tensor, move: Move, out: torch.Tensor | None) -> _C.TensorArgs:
    return (
        list(x.shape),
        list(x.stride()),
        x.itemsize,
        str(x.dtype).removeprefix("torch."),
        move.scatter_dim,
        move.gather_dim,
        move.scatter.lengths,
        move.gather.lengths,
        None if out is None else list(out.stride()),
        move.scatter.starts,
    )


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
