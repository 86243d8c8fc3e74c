"""What one forward of a model has split over the ranks, and how.

A context-parallel plan names many inputs that are cut along the sequence: the tokens themselves, rotary tables, masks,
per-token timesteps. A rank sees only its part of each, so nothing would notice a table that was cut for another length
than the tokens. The ledger notes the whole length of everything that is cut, and before the first attention of a
forward it holds the lengths against each other: on this rank, everything is then cut where the tokens are. That the
ranks agree on where that is, every exchange sees: it is told the splits of all ranks, and ranks that name different
ones raise ``CollectiveMismatch``. So no length has to travel on its own.
"""

from __future__ import annotations

import torch

from .._C import balanced_split
from ..errors import InvalidArgument

__all__ = ["TOKEN_STREAMS", "TokenLedger"]

TOKEN_STREAMS = ("hidden_states", "encoder_hidden_states")
"""The argument names under which diffusers' plans cut the tokens themselves; everything else goes with one of them."""


class TokenLedger:
    """The book of one model on one rank; local."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._lengths: dict[str, int] = {}  # where -> whole length
        self._streams: dict[str, int] = {}  # name of a token stream -> whole length
        self._checked = False
        self.attentions = 0  # how many went through the group in this forward

    def begin(self) -> None:
        """A forward begins; nothing is split yet."""
        self._lengths.clear()
        self._streams.clear()
        self._checked = False
        self.attentions = 0

    @property
    def streams(self) -> int:
        """How many token streams this forward has split so far."""
        return len(self._streams)

    @property
    def tokens_are_split(self) -> bool:
        """Before that, attention works on tokens that every rank holds whole, and needs nobody."""
        return bool(self._streams)

    def split(self, tensor: torch.Tensor, dim: int, where: str, name: str | None) -> torch.Tensor:
        """This rank's part of ``tensor``, a view; ``name`` is the argument's, None for an output."""
        total = tensor.shape[dim]
        if self._lengths.setdefault(where, total) != total:
            raise InvalidArgument(
                f"{where} was split twice in one forward, once with {self._lengths[where]} tokens and once with {total}"
            )
        if name in TOKEN_STREAMS and self._streams.setdefault(name, total) != total:
            raise InvalidArgument(
                f"{where} has {total} tokens, but '{name}' had {self._streams[name]} earlier in this forward: streams "
                "that change their length inside the sharded part are not supported"
            )
        if self._checked:
            self._check_against_streams(where, total)
        parts = balanced_split(total, self._size)
        return tensor.narrow(dim, sum(parts[: self._rank]), parts[self._rank])

    def gather_splits(self, length: int, where: str) -> list[int]:
        """How the output ``where``, of which this rank holds ``length`` tokens, is spread over the ranks."""
        total = self._streams.get("hidden_states")
        if total is None:
            raise InvalidArgument(f"{where} is to be gathered, but 'hidden_states' was not split in this forward")
        parts = balanced_split(total, self._size)
        if length != parts[self._rank]:
            raise InvalidArgument(
                f"{where} holds {length} tokens on rank {self._rank} of {self._size}, where {parts[self._rank]} of "
                f"{total} are expected: it is not the stream that the plan has split"
            )
        return parts

    def attention_splits(self, query: int, key: int) -> list[int]:
        """How the tokens of a self-attention are spread: each rank holds its part of every stream, in their order."""
        if not self._checked:
            for where, total in self._lengths.items():
                self._check_against_streams(where, total)
            self._checked = True
        parts = [0] * self._size
        for total in self._streams.values():
            parts = [part + more for part, more in zip(parts, balanced_split(total, self._size), strict=True)]
        if query != key or query != parts[self._rank]:
            streams = " + ".join(f"{total} of '{name}'" for name, total in self._streams.items())
            raise InvalidArgument(
                f"an attention of {query} queries and {key} keys cannot be spread: rank {self._rank} of {self._size} "
                f"holds {parts[self._rank]} of the model's tokens ({streams}), and only self-attention over all of "
                "them is supported. Cross-attention needs keys and values that every rank holds whole, called by the "
                "model with parallel_config=None"
            )
        self.attentions += 1
        return parts

    def _check_against_streams(self, where: str, total: int) -> None:
        if total not in self._streams.values():
            streams = ", ".join(f"'{name}' has {length}" for name, length in self._streams.items())
            raise InvalidArgument(
                f"{where} was split as {total} tokens, but {streams}: its parts would not lie beside the tokens "
                "they belong to"
            )
