"""The operators ``torch.ops.fast_ulysses.*`` and their Python fronts.

They are defined with `torch.library.Library.define` and `impl`, which cost the least host time. Three kernels each:

- CompositeExplicitAutograd: the call itself, for every device;
- Autograd: refuses inputs that need grad instead of dropping their gradient in silence, then redispatches;
- the fake: shapes from the handle string alone, with no live group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .calls import Splits, run_call
from .errors import InvalidArgument
from .group import Group, lookup, parse_handle

_SPLITS = "int scatter_dim=2, int gather_dim=1, SymInt[]? scatter_splits=None, SymInt[]? gather_splits=None"

_library = torch.library.Library("fast_ulysses", "DEF")
_library.define(f"a2a(Tensor x, str group, {_SPLITS}) -> Tensor")
_library.define(f"a2a_out(Tensor x, str group, {_SPLITS}, *, Tensor(a!) out) -> ()")
_library.define(f"a2a_qkv(Tensor q, Tensor k, Tensor v, str group, {_SPLITS}) -> (Tensor, Tensor, Tensor)")
_library.define("all_to_all_single(Tensor x, str group) -> Tensor")

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
    group that was destroyed, CollectiveMismatch, PeerTimeout, PeerError. Not differentiable yet: an input that needs
    grad is refused while grad mode is on.
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
    """`a2a` of three tensors in one exchange. Collective; arguments, result and errors as in `a2a`."""
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


# Kernels


def _a2a_kernel(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> torch.Tensor:
    return run_call(lookup(group), "a2a", (x,), scatter_dim, gather_dim, scatter_splits, gather_splits)[0]


def _a2a_out_kernel(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
    *,
    out: torch.Tensor,
) -> None:
    run_call(lookup(group), "a2a", (x,), scatter_dim, gather_dim, scatter_splits, gather_splits, out)


def _a2a_qkv_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    results = run_call(lookup(group), "a2a_qkv", (q, k, v), scatter_dim, gather_dim, scatter_splits, gather_splits)
    return results[0], results[1], results[2]


def _all_to_all_single_kernel(x: torch.Tensor, group: str) -> torch.Tensor:
    live = lookup(group)
    _check_parts(x, live.size)
    # [P, n, ...]: dim 0 is scattered and dim 1 gathered, which leaves [1, P * n, ...], the result in rank order.
    parts = x.unflatten(0, (live.size, x.size(0) // live.size))
    if parts.dim() == 2:
        parts = parts.unsqueeze(-1)
    elif parts.dim() > 5:
        parts = parts.flatten(2)  # a view where the strides allow, as they do for every contiguous input
    return run_call(live, "all_to_all_single", (parts,), 0, 1, None, None)[0].view(x.shape)


def _check_parts(x: torch.Tensor, size: int) -> None:
    if x.dim() == 0 or x.size(0) % size:
        raise InvalidArgument(
            f"all_to_all_single: dim 0 of a tensor of shape {list(x.shape)} does not divide by the group's {size} ranks"
        )


def _below_autograd(name: str) -> Callable[..., Any]:
    packet = getattr(torch.ops.fast_ulysses, name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise InvalidArgument(_refusal(name))
        with torch._C._AutoDispatchBelowAutograd():
            result = packet(*args, **kwargs)
        if "out" in kwargs:
            torch.autograd.graph.increment_version(kwargs["out"])
        return result

    return kernel


def _refusal(name: str) -> str:
    if name == "a2a_out":
        return "a2a with out= has no gradient; call it without out=, or under torch.no_grad(), or with x.detach()"
    return f"{name}: an input needs grad, which this op does not have yet; use torch.no_grad() or x.detach()"


# Shape inference, from the handle string alone


def _output_sizes(
    op: str, sizes: Sequence[Any], group: str, scatter_dim: int, gather_dim: int, scatter: Splits, gather: Splits
) -> list[Any]:
    parts = parse_handle(group)
    dims = len(sizes)
    inner = range(-dims, dims)
    if scatter_dim not in inner or gather_dim not in inner or scatter_dim % dims == gather_dim % dims:
        raise InvalidArgument(f"{op}: scatter_dim={scatter_dim}, gather_dim={gather_dim} of a tensor with {dims} dims")
    result = list(sizes)
    whole, shard = result[scatter_dim], result[gather_dim]
    if scatter is None:
        torch._check(whole % parts.size == 0, lambda: f"{op}: {whole} does not divide by {parts.size} ranks")
    result[scatter_dim] = whole // parts.size if scatter is None else scatter[parts.rank]
    result[gather_dim] = shard * parts.size if gather is None else sum(gather)
    return result


def _a2a_fake(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> torch.Tensor:
    return x.new_empty(_output_sizes("a2a", x.shape, group, scatter_dim, gather_dim, scatter_splits, gather_splits))


def _a2a_out_fake(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
    *,
    out: torch.Tensor,
) -> None:
    sizes = _output_sizes("a2a", x.shape, group, scatter_dim, gather_dim, scatter_splits, gather_splits)
    if out.dtype != x.dtype or out.device != x.device:
        raise InvalidArgument(f"a2a: out is {out.dtype} on {out.device}, but the result is {x.dtype} on {x.device}")
    torch._check(
        out.dim() == len(sizes) and all(have == need for have, need in zip(out.shape, sizes, strict=True)),
        lambda: f"a2a: out has shape {list(out.shape)}, but the result has {sizes}",
    )


def _a2a_qkv_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    args = (group, scatter_dim, gather_dim, scatter_splits, gather_splits)
    return _a2a_fake(q, *args), _a2a_fake(k, *args), _a2a_fake(v, *args)


def _all_to_all_single_fake(x: torch.Tensor, group: str) -> torch.Tensor:
    _check_parts(x, parse_handle(group).size)
    return x.new_empty(x.shape)


def _register(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    _library.impl(name, _below_autograd(name), "Autograd")
    torch.library.register_fake(f"fast_ulysses::{name}", fake, lib=_library)


_register("a2a", _a2a_kernel, _a2a_fake)
_register("a2a_out", _a2a_out_kernel, _a2a_out_fake)
_register("a2a_qkv", _a2a_qkv_kernel, _a2a_qkv_fake)
_register("all_to_all_single", _all_to_all_single_kernel, _all_to_all_single_fake)
