"""The Autograd kernels: the gradient of an exchange is the inverse exchange with the same splits.

Written by hand, since `torch.library.register_autograd` costs some microseconds of host time a call even where nothing
needs grad. An exchange is a permutation of elements over the ranks, so nothing has to be saved for backward but the
arguments. All ranks run the same program, so the backward exchanges meet as the forward ones did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import InvalidArgument


class _A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *args: Any) -> torch.Tensor:
        ctx.args = args
        with torch._C._AutoDispatchBelowAutograd():
            result: torch.Tensor = torch.ops.fast_ulysses.a2a.default(x, *args)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group, scatter_dim, gather_dim, scatter_splits, gather_splits = ctx.args
        inverse = (group, gather_dim, scatter_dim, gather_splits, scatter_splits)
        return torch.ops.fast_ulysses.a2a.default(grad, *inverse), *[None] * len(ctx.args)


class _A2AQkv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any) -> Any:
        ctx.args = args
        ctx.heads = (q.size(args[1]), k.size(args[1]))
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.fast_ulysses.a2a_qkv.default(q, k, v, *args)

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> Any:
        # All three always travel, also if only one is wanted: what travels may depend on the program alone.
        grads = torch.ops.fast_ulysses.a2a_qkv_backward.default(dq, dk, dv, *ctx.args, *ctx.heads)
        return *grads, *[None] * len(ctx.args)


class _AllToAllSingle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        with torch._C._AutoDispatchBelowAutograd():
            result: torch.Tensor = torch.ops.fast_ulysses.all_to_all_single.default(x, group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.ops.fast_ulysses.all_to_all_single.default(grad, ctx.group), None


def _a2a(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Any = None,
    gather_splits: Any = None,
) -> Any:
    args = (group, scatter_dim, gather_dim, scatter_splits, gather_splits)
    if x.requires_grad and torch.is_grad_enabled():
        return _A2A.apply(x, *args)  # type: ignore[no-untyped-call]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.fast_ulysses.a2a.default(x, *args)


def _a2a_qkv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Any = None,
    gather_splits: Any = None,
) -> Any:
    args = (group, scatter_dim, gather_dim, scatter_splits, gather_splits)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _A2AQkv.apply(q, k, v, *args)  # type: ignore[no-untyped-call]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.fast_ulysses.a2a_qkv.default(q, k, v, *args)


def _all_to_all_single(x: torch.Tensor, group: str) -> Any:
    if x.requires_grad and torch.is_grad_enabled():
        return _AllToAllSingle.apply(x, group)  # type: ignore[no-untyped-call]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.fast_ulysses.all_to_all_single.default(x, group)


def _refusing(name: str, why: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise InvalidArgument(why)
        with torch._C._AutoDispatchBelowAutograd():
            result = getattr(torch.ops.fast_ulysses, name).default(*args, **kwargs)
        if "out" in kwargs:
            torch.autograd.graph.increment_version(kwargs["out"])
        return result

    return kernel


def autograd_kernels() -> dict[str, Callable[..., Any]]:
    """By the name of the op."""
    return {
        "a2a": _a2a,
        "a2a_out": _refusing(
            "a2a_out",
            "a2a with out= has no gradient; call it without out=, or under torch.no_grad(), or with x.detach()",
        ),
        "a2a_qkv": _a2a_qkv,
        "a2a_qkv_backward": _refusing(
            "a2a_qkv_backward", "a2a_qkv is differentiable once; for second derivatives call a2a three times"
        ),
        "all_to_all_single": _all_to_all_single,
    }
