"""What the operators do, and the shapes of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .calls import Move, prepare, run, run_into
from .cuts import Cut, Splits, as_cut, kv_cut
from .errors import InvalidArgument
from .group import Group, lookup, parse_handle

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def a2a(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> torch.Tensor:
    live = lookup(group)
    key = (scatter_dim, gather_dim, _hashable(scatter_splits), _hashable(gather_splits))
    prepared = prepare(live, "a2a", key, (x,), lambda: [_move(*key)])
    return run(live, prepared, (x,))[0]


def a2a_out(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
    *,
    out: torch.Tensor,
) -> None:
    key = (scatter_dim, gather_dim, _hashable(scatter_splits), _hashable(gather_splits))
    run_into(lookup(group), "a2a", key, x, out, lambda: [_move(*key)])


def a2a_qkv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> _Three:
    live = lookup(group)
    key = (scatter_dim, gather_dim, _hashable(scatter_splits), _hashable(gather_splits))

    def moves() -> list[Move]:
        of_q = _move(*key)
        of_kv = of_q
        if k.dim() == q.dim() and -q.dim() <= scatter_dim < q.dim() and k.size(scatter_dim) != q.size(scatter_dim):
            cut = kv_cut(q.size(scatter_dim), k.size(scatter_dim), live.size, scatter_splits)
            of_kv = Move(scatter_dim, gather_dim, cut, of_q.gather)
        return [of_q, of_kv, of_kv]

    results = run(live, prepare(live, "a2a_qkv", key, (q, k, v), moves), (q, k, v))
    return results[0], results[1], results[2]


def a2a_qkv_backward(
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    group: str,
    scatter_dim: int,
    gather_dim: int,
    scatter_splits: Splits,
    gather_splits: Splits,
    q_heads: int,
    kv_heads: int,
) -> _Three:
    live = lookup(group)
    key = (scatter_dim, gather_dim, _hashable(scatter_splits), _hashable(gather_splits), q_heads, kv_heads)
    cut = kv_cut(q_heads, kv_heads, live.size, scatter_splits)

    def moves() -> list[Move]:
        tokens = as_cut(gather_splits)
        of_q = Move(gather_dim, scatter_dim, tokens, as_cut(scatter_splits))
        # The replicas come back one behind the other, in rank order.
        of_kv = Move(gather_dim, scatter_dim, tokens, Cut(cut.lengths))
        return [of_q, of_kv, of_kv]

    back = run(live, prepare(live, "a2a_qkv_backward", key, (dq, dk, dv), moves), (dq, dk, dv))
    if not cut.replicated:
        return back[0], back[1], back[2]
    return (
        back[0],
        _sum_replicas(back[1], scatter_dim, cut, kv_heads),
        _sum_replicas(back[2], scatter_dim, cut, kv_heads),
    )


def _sum_replicas(parts: torch.Tensor, dim: int, cut: Cut, heads: int) -> torch.Tensor:
    """The parts of all ranks added up where each belongs, in rank order, in float32 or wider; rounded once."""
    assert cut.lengths is not None
    assert cut.starts is not None
    wide = torch.promote_types(parts.dtype, torch.float32)
    sizes = list(parts.shape)
    sizes[dim] = heads
    total = torch.zeros(sizes, dtype=wide, device=parts.device)
    for part, start, length in zip(parts.split(list(cut.lengths), dim), cut.starts, cut.lengths, strict=True):
        total.narrow(dim, start, length).add_(part)
    return total.to(parts.dtype)


def all_to_all_single(x: torch.Tensor, group: str) -> torch.Tensor:
    live = lookup(group)
    parts = as_parts(x, live)
    return run(live, prepare(live, "all_to_all_single", None, (parts,), lambda: [PARTS]), (parts,), x.shape)[0]


# [P, n, ...]: dim 0 is scattered and dim 1 gathered, which leaves [1, P * n, ...], the result in rank order.
PARTS = Move(0, 1, Cut(), Cut())


def as_parts(x: torch.Tensor, group: Group) -> torch.Tensor:
    """`x` seen as one part a rank, with 3 to 5 dims."""
    _check_parts(x, group.size)
    parts: torch.Tensor = x.unflatten(0, (group.size, x.size(0) // group.size))
    if parts.dim() == 2:
        return parts.unsqueeze(-1)
    # A view where the strides allow, as they do for every contiguous input.
    return parts.flatten(2) if parts.dim() > 5 else parts


def _check_parts(x: torch.Tensor, size: int) -> None:
    if x.dim() == 0 or x.size(0) % size:
        raise InvalidArgument(
            f"all_to_all_single: dim 0 of a tensor of shape {list(x.shape)} does not divide by the group's {size} ranks"
        )


def _hashable(splits: Splits) -> tuple[int, ...] | None:
    return None if splits is None else tuple(splits)


def _move(scatter_dim: int, gather_dim: int, scatter_splits: Splits, gather_splits: Splits) -> Move:
    return Move(scatter_dim, gather_dim, as_cut(scatter_splits), as_cut(gather_splits))


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


def a2a_fake(
    x: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> torch.Tensor:
    return x.new_empty(_output_sizes("a2a", x.shape, group, scatter_dim, gather_dim, scatter_splits, gather_splits))


def a2a_out_fake(
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


def a2a_qkv_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: str,
    scatter_dim: int = 2,
    gather_dim: int = 1,
    scatter_splits: Splits = None,
    gather_splits: Splits = None,
) -> _Three:
    q_splits, kv_splits = scatter_splits, scatter_splits
    if k.dim() == q.dim() and k.size(scatter_dim) != q.size(scatter_dim):
        size = parse_handle(group).size
        kv_splits = kv_cut(int(q.size(scatter_dim)), int(k.size(scatter_dim)), size, scatter_splits).lengths
    return (
        a2a_fake(q, group, scatter_dim, gather_dim, q_splits, gather_splits),
        a2a_fake(k, group, scatter_dim, gather_dim, kv_splits, gather_splits),
        a2a_fake(v, group, scatter_dim, gather_dim, kv_splits, gather_splits),
    )


def a2a_qkv_backward_fake(
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    group: str,
    scatter_dim: int,
    gather_dim: int,
    scatter_splits: Splits,
    gather_splits: Splits,
    q_heads: int,
    kv_heads: int,
) -> _Three:
    def input_like(grad: torch.Tensor, heads: int) -> torch.Tensor:
        sizes = _output_sizes("a2a_qkv_backward", grad.shape, group, gather_dim, scatter_dim, gather_splits, None)
        sizes[scatter_dim] = heads
        return grad.new_empty(sizes)

    return input_like(dq, q_heads), input_like(dk, kv_heads), input_like(dv, kv_heads)


def all_to_all_single_fake(x: torch.Tensor, group: str) -> torch.Tensor:
    _check_parts(x, parse_handle(group).size)
    return x.new_empty(x.shape)
