"""The operators ``torch.ops.fast_ulysses.*`` and their Python fronts.

They are defined with `torch.library.Library.define` and `impl`, which cost the least host time. Three kernels each:

- CompositeExplicitAutograd: the call itself, for every device (`kernels.py`);
- Autograd: records the inverse exchange, or redispatches when nothing needs grad (`autograd.py`);
- the fake: shapes from the handle string alone, with no live group (`kernels.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import kernels
from .autograd import autograd_kernels
from .cuts import Splits
from .group import Group
from .program_order import keep_program_order

_SPLITS = "int scatter_dim=2, int gather_dim=1, SymInt[]? scatter_splits=None, SymInt[]? gather_splits=None"

_library = torch.library.Library("fast_ulysses", "DEF")
_library.define(f"a2a(Tensor x, str group, {_SPLITS}) -> Tensor")
_library.define(f"a2a_out(Tensor x, str group, {_SPLITS}, *, Tensor(a!) out) -> ()")
_library.define(f"a2a_qkv(Tensor q, Tensor k, Tensor v, str group, {_SPLITS}) -> (Tensor, Tensor, Tensor)")
# The gradient of a2a_qkv, with its arguments: dq, dk and dv go back, and replicas of a kv head are summed.
_library.define(
    "a2a_qkv_backward(Tensor dq, Tensor dk, Tensor dv, str group, int scatter_dim, int gather_dim, "
    "SymInt[]? scatter_splits, SymInt[]? gather_splits, SymInt q_heads, SymInt kv_heads) -> (Tensor, Tensor, Tensor)"
)
_library.define("all_to_all_single(Tensor x, str group) -> Tensor")


_NAMES = ("a2a", "a2a_out", "a2a_qkv", "a2a_qkv_backward", "all_to_all_single")


def _register(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    @functools.wraps(fake)
    def infer(*args: Any, **kwargs: Any) -> Any:
        keep_program_order(_NAMES)
        return fake(*args, **kwargs)

    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fast_ulysses::{name}", infer, lib=_library)


_register("a2a", kernels.a2a, kernels.a2a_fake)
_register("a2a_out", kernels.a2a_out, kernels.a2a_out_fake)
_register("a2a_qkv", kernels.a2a_qkv, kernels.a2a_qkv_fake)
_register("a2a_qkv_backward", kernels.a2a_qkv_backward, kernels.a2a_qkv_backward_fake)
_register("all_to_all_single", kernels.all_to_all_single, kernels.all_to_all_single_fake)
for _name, _kernel in autograd_kernels().items():
    _library.impl(_name, _kernel, "Autograd")

# The public fronts


def a2a(
    x: torch.Tensor,
    group: Group | str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Trades a shard of one dim for a shard of another. Collective over the group.

    x: 3 to 5 dims, elements of 1, 2, 4 or 8 bytes, any strides. `scatter_dim` is whole here and is split over the
    ranks; `gather_dim` is this rank's shard and becomes whole, in group-rank order. Any two dims but the last.
    With the defaults ``[B, s_r, H, D] -> [B, S, h_r, D]`` (scatter heads, into attention); with
    ``scatter_dim=1, gather_dim=2`` the inverse.

    scatter_splits, gather_splits: one length a rank, the same lists on all ranks; None means equal parts, and then
    `scatter_dim` has to divide by the group's size and `gather_dim` has to be alike on all ranks.

    Returns a new contiguous tensor, or `out`, which is of the result's shape, dtype and device, of any strides, and
    does not share memory with `x`; a tensor of `Group.empty` is written by the peers directly. The input may be
    overwritten right after. Every bit is moved unchanged. CPU tensors: returns when the result is there.

    Raises InvalidArgument (from the arguments alone, on all ranks alike, before anything is sent), StateError for a
    group that was destroyed, CollectiveMismatch, PeerTimeout, PeerError. Differentiable, any number of times: the
    gradient is the inverse exchange with the same splits. With `out` an input that needs grad is refused.
    """
    handle = group if isinstance(group, str) else group.handle
    if out is None:
        result: torch.Tensor = torch.ops.fast_ulysses.a2a(
            x, handle, scatter_dim, gather_dim, scatter_splits, gather_splits
        )
        return result
    torch.ops.fast_ulysses.a2a_out(x, handle, scatter_dim, gather_dim, scatter_splits, gather_splits, out=out)
    return out


def a2a_qkv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Group | str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`a2a` of three tensors in one exchange. Collective; arguments, result and errors as in `a2a`.

    k and v may have fewer heads (size of `scatter_dim`) than q: query head i attends kv head ``i // (Hq / Hkv)``.
    `scatter_splits` then are those of q, and each rank receives the kv heads of its query heads and no others, so
    that what travels is compact. The query heads of a rank have to be those of whole kv heads (``[16, 12]`` for 28
    query and 7 kv heads on 2 ranks), or lie within one, which several ranks then get a copy of: every rank has its
    part of q and the kv heads for it. In the backward pass the copies' gradients are summed in float32 (float64 for
    float64), in rank order, and rounded once. Differentiable once.
    """
    handle = group if isinstance(group, str) else group.handle
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.fast_ulysses.a2a_qkv(
        q, k, v, handle, scatter_dim, gather_dim, scatter_splits, gather_splits
    )
    return result


def all_to_all_single(x: torch.Tensor, group: Group | str) -> torch.Tensor:
    """Sends the p-th of equal parts of dim 0 to rank p; the result holds the received parts in rank order. Collective.

    x: one dim or more, any trailing shape, dim 0 divisible by the group's size. Returns a new contiguous tensor of the
    same shape. Errors as in `a2a`.
    """
    handle = group if isinstance(group, str) else group.handle
    result: torch.Tensor = torch.ops.fast_ulysses.all_to_all_single(x, handle)
    return result
