"""Cutting a tensor into the ranks' shards and joining it again.

For the edges of a model: the input is sharded once and the output joined once. Neither is on the hot path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _C
from .errors import InvalidArgument
from .group import Group, lookup


def shard(x: torch.Tensor, group: Group | str, dim: int = 1, splits: Sequence[int] | None = None) -> torch.Tensor:
    """This rank's part of `x` along `dim`, as a view; differentiable. Local.

    splits: one length a rank that add up to ``x.size(dim)``; None cuts as evenly as possible, the longer parts first
    (30 over 4 ranks: 8, 8, 7, 7). Raises InvalidArgument.
    """
    live = lookup(group) if isinstance(group, str) else group
    dim = _checked_dim("shard", x, dim)
    lengths = _C.balanced_split(x.size(dim), live.size) if splits is None else [int(n) for n in splits]
    if len(lengths) != live.size or any(n < 0 for n in lengths) or sum(lengths) != x.size(dim):
        raise InvalidArgument(
            f"shard: splits {lengths} have to be {live.size} lengths that add up to {x.size(dim)}, as dim {dim} does"
        )
    return x.narrow(dim, sum(lengths[: live.rank]), lengths[live.rank])


def shard_positions(
    total: int, group: Group | str, splits: Sequence[int] | None = None, device: torch.device | str | None = None
) -> torch.Tensor:
    """The global positions of this rank's part of a dim of `total`, int64 ``[length of the part]``. Local.

    For what depends on a token's place in the whole sequence: rotary tables, position embeddings, causal masks.
    splits: as in `shard`. Raises InvalidArgument.
    """
    return shard(torch.arange(total, device=device), group, 0, splits)


def unshard(x: torch.Tensor, group: Group | str, dim: int = 1, splits: Sequence[int] | None = None) -> torch.Tensor:
    """The ranks' parts joined along `dim` in group-rank order, the same on all ranks. Collective and blocking.

    Goes over torch.distributed, whatever the group's transport. Parts may differ in `dim` only. splits: checked against
    this rank's part when given. Returns a new tensor. Raises InvalidArgument, also for an input that needs grad while
    grad mode is on, CollectiveMismatch, PeerTimeout and PeerError.
    """
    live = lookup(group) if isinstance(group, str) else group
    live.check()
    dim = _checked_dim("unshard", x, dim)
    if x.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument("unshard: the input needs grad, which unshard does not have; use torch.no_grad()")
    if splits is not None and (len(splits) != live.size or splits[live.rank] != x.size(dim)):
        raise InvalidArgument(
            f"unshard: splits {list(splits)} on rank {live.rank} of {live.size}, but dim {dim} has size {x.size(dim)}"
        )
    if x.layout is not torch.strided or x.itemsize > 8:
        raise InvalidArgument(f"unshard: {x.dtype} of layout {x.layout} is not moved; strided, 1 to 8 bytes an element")
    x = x.resolve_conj().resolve_neg().detach()
    sizes = ", ".join("*" if d == dim else str(n) for d, n in enumerate(x.shape))
    parts = "" if splits is None else f", splits {list(splits)}"
    text = f"unshard {str(x.dtype).removeprefix('torch.')} [{sizes}] dim {dim}{parts}"
    return torch.cat(live.wire.gather(text, x, dim), dim)


def _checked_dim(op: str, x: torch.Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise InvalidArgument(f"{op}: dim {dim} of a tensor with {x.dim()} dims")
    return dim % x.dim()
