"""How each tensor of an exchange is cut over the ranks: pure functions of the arguments, alike on all ranks.

Grouped-query attention: `q` has `g` times as many heads as `k` and `v`; query head ``i`` attends kv head ``i // g``. A
rank needs the kv heads of its own query heads and no others, so what travels is compact; with fewer kv heads than
ranks several ranks need the same head, and the writer sends it to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _C
from .errors import InvalidArgument

Splits = Sequence[int] | None


@dataclass(frozen=True)
class Cut:
    """The parts of one dim: a length a rank; a start a rank where parts overlap. None: even, one behind the other."""

    lengths: tuple[int, ...] | None = None
    starts: tuple[int, ...] | None = None

    @property
    def replicated(self) -> bool:
        """Whether several ranks get the same rows."""
        return self.starts is not None


def as_cut(splits: Splits) -> Cut:
    return Cut() if splits is None else Cut(tuple(splits))


def kv_cut(q_heads: int, kv_heads: int, size: int, q_splits: Splits) -> Cut:
    """The kv heads that each rank needs for its query heads.

    q_splits: query heads a rank, None for an even division. Raises InvalidArgument, on all ranks alike, when the query
    heads of a rank are neither those of whole kv heads nor of a single one.
    """
    if q_heads == kv_heads:
        return as_cut(q_splits)
    if kv_heads == 0 or q_heads % kv_heads:
        raise InvalidArgument(
            f"a2a_qkv: {q_heads} query heads do not divide by {kv_heads} kv heads; each kv head has to serve the same "
            "number"
        )
    per_kv = q_heads // kv_heads
    if q_splits is None:
        if q_heads % size:
            raise InvalidArgument(
                f"a2a_qkv: {q_heads} query heads do not divide by {size} ranks; {_remedy(q_heads, kv_heads, size)}"
            )
        q_splits = [q_heads // size] * size
    lengths, starts, first = [], [], 0
    for rank, heads in enumerate(q_splits):
        end = first + heads
        start, stop = first // per_kv, -(-end // per_kv)
        whole = first % per_kv == 0 and end % per_kv == 0
        if heads and not whole and stop - start > 1:
            raise InvalidArgument(
                f"a2a_qkv: the query heads {first} to {end - 1} of rank {rank} cut through a kv head ({per_kv} query "
                f"heads share one of {kv_heads}); {_remedy(q_heads, kv_heads, size)}"
            )
        lengths.append(stop - start if heads else 0)
        starts.append(min(start, kv_heads))
        first = end
    packed = [sum(lengths[:rank]) for rank in range(size)]
    return Cut(tuple(lengths)) if starts == packed else Cut(tuple(lengths), tuple(starts))


def _remedy(q_heads: int, kv_heads: int, size: int) -> str:
    legal = [p for p in range(2, 65) if q_heads % p == 0 and (kv_heads % p == 0 or p % kv_heads == 0)]
    text = f"use one of {', '.join(map(str, legal))} ranks" if legal else "use one rank"
    if kv_heads < size:
        return text
    example = [part * (q_heads // kv_heads) for part in _C.balanced_split(kv_heads, size)]
    return f"pass scatter_splits that follow the kv heads, for example {example}, or {text}"
