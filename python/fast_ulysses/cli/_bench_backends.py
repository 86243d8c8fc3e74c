"""The ways to exchange that the benchmark compares, and the data that they move.

Every rank knows what it has to receive without asking anybody: the bits are coded by position.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import fast_ulysses

from ._bench_job import Case

__all__ = ["Data", "make_backend"]

Call = Callable[[], torch.Tensor]

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn,
    "uint8": torch.uint8,
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BATCH, _TOKENS, _HEADS = 0, 1, 2
_MIX = 0x9E3779B97F4A7C15


class Data:
    """This rank's input and the result that it has to get, both of which change before every call.

    Rows left over from an earlier call, in whatever memory, are therefore never taken for the right ones.
    """

    def __init__(self, case: Case, rank: int, size: int) -> None:
        self.case, self.rank, self.size = case, rank, size
        self.tokens, self.heads = case.token_splits(size), case.head_splits(size)
        shard = (self._own(self.tokens), range(case.heads))
        cut = (range(case.tokens), self._own(self.heads))
        inward = case.direction == "scatter"
        dtype = TORCH_DTYPES[case.dtype]
        self.x = _coded(case, *(shard if inward else cut)).view(dtype)
        self.expected = _coded(case, *(cut if inward else shard)).view(dtype)
        self.scatter_dim, self.gather_dim = (_HEADS, _TOKENS) if inward else (_TOKENS, _HEADS)
        self.scatter_splits, self.gather_splits = (self.heads, self.tokens) if inward else (self.tokens, self.heads)
        self._calls = 0

    def renew(self) -> None:
        """Other bits in every element of the input, and the same change in what is expected."""
        width = 8 * self.x.itemsize
        before, self._calls = self._calls, self._calls + 1
        change = _signed((before * _MIX ^ self._calls * _MIX) % (1 << width), width)
        for tensor in (self.x, self.expected):
            bits(tensor).bitwise_xor_(change)

    def is_expected(self, result: torch.Tensor) -> bool:
        """Whether every bit is the right one."""
        return result.shape == self.expected.shape and torch.equal(bits(result), bits(self.expected))

    def even_splits(self) -> bool:
        return len(set(self.tokens)) == 1 and len(set(self.heads)) == 1

    def _own(self, splits: Sequence[int]) -> range:
        start = sum(splits[: self.rank])
        return range(start, start + splits[self.rank])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same size: NaN payloads are then moved and compared as they are."""
    return tensor.view(_INTEGERS[tensor.itemsize])


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if width > 8 and value >> (width - 1) else value


def _coded(case: Case, tokens: range, heads: range) -> torch.Tensor:
    """Bits by (batch, token, head, element), the same on every rank, made without temporaries of the tensor's size."""
    itemsize = TORCH_DTYPES[case.dtype].itemsize
    source = torch.Generator().manual_seed(1)

    def words(*sizes: int) -> torch.Tensor:
        least, most = (0, 256) if itemsize == 1 else (-(1 << (8 * itemsize - 1)), (1 << (8 * itemsize - 1)) - 1)
        return torch.randint(least, most, sizes, generator=source, dtype=_INTEGERS[itemsize])

    by_token = words(case.batch, case.tokens)[:, tokens.start : tokens.stop, None]
    by_head = words(case.heads)[heads.start : heads.stop]
    # A token's word in a head decides the row; the elements of a row differ by a word of their own.
    return torch.bitwise_xor((by_token ^ by_head)[..., None], words(case.width)).contiguous()


def make_backend(name: str, data: Data, group: fast_ulysses.Group) -> Call:
    """Collective for ``fast_ulysses_out``: the function to time. It returns the result."""
    return _MAKERS[name](data, group)


def _torch(data: Data, _group: fast_ulysses.Group) -> Call:
    """As DeepSpeed and diffusers have it: a permute that moves nothing (batch 1, tokens) makes no copy."""
    blocks = _blocks(data)
    send = [data.x.numel() // max(1, data.x.size(data.scatter_dim)) * n for n in data.scatter_splits]
    take = [torch.Size(block).numel() for block in blocks]
    itemsize = data.x.itemsize

    def call() -> torch.Tensor:
        outbox = _in_rank_order(data.x, data.scatter_dim, data.scatter_splits)
        inbox = outbox.new_empty(sum(take))
        dist.all_to_all_single(  # bytes: gloo refuses several dtypes
            inbox.view(torch.uint8),
            outbox.view(torch.uint8),
            [n * itemsize for n in take],
            [n * itemsize for n in send],
        )
        return _joined(inbox, data.gather_dim, blocks)

    return call


def _blocks(data: Data) -> list[list[int]]:
    """Sizes of what every rank sends to this one."""
    sizes = list(data.x.shape)
    sizes[data.scatter_dim] = data.scatter_splits[data.rank]
    return [[n if dim == data.gather_dim else size for dim, size in enumerate(sizes)] for n in data.gather_splits]


def _in_rank_order(x: torch.Tensor, dim: int, splits: Sequence[int]) -> torch.Tensor:
    if len(set(splits)) == 1:
        blocks: torch.Tensor = x.unflatten(dim, (len(splits), splits[0])).movedim(dim, 0)
        return blocks.contiguous().view(-1)
    if dim == _TOKENS and x.size(_BATCH) == 1:
        return x.reshape(-1)
    return torch.cat([part.reshape(-1) for part in x.split(list(splits), dim)])


def _joined(flat: torch.Tensor, dim: int, blocks: list[list[int]]) -> torch.Tensor:
    if all(block == blocks[0] for block in blocks):
        return flat.view(len(blocks), *blocks[0]).movedim(0, dim).flatten(dim, dim + 1).contiguous()
    if dim == _TOKENS and blocks[0][_BATCH] == 1:
        return flat.view(1, sum(block[dim] for block in blocks), *blocks[0][_HEADS:])
    parts = flat.split([torch.Size(block).numel() for block in blocks])
    return torch.cat([part.view(block) for part, block in zip(parts, blocks, strict=True)], dim)


def _packed_fused(data: Data, _group: fast_ulysses.Group) -> Call:
    """The leanest way over torch.distributed: one strided copy a peer before and after, own rows moved once."""
    me, peers = data.rank, [rank for rank in range(data.size) if rank != data.rank]
    blocks = _blocks(data)
    sources = data.x.split(list(data.scatter_splits), data.scatter_dim)
    send = [0 if to == me else sources[to].numel() for to in range(data.size)]
    take = [0 if of == me else torch.Size(blocks[of]).numel() for of in range(data.size)]
    itemsize = data.x.itemsize

    def call() -> torch.Tensor:
        outbox, inbox = data.x.new_empty(sum(send)), data.x.new_empty(sum(take))
        result = data.x.new_empty(data.expected.shape)
        places = bits(result).split(list(data.gather_splits), data.gather_dim)
        outgoing, incoming = bits(outbox).split(send), bits(inbox).split(take)
        for peer in peers:
            outgoing[peer].view(sources[peer].shape).copy_(bits(sources[peer]))
        dist.all_to_all_single(
            inbox.view(torch.uint8),
            outbox.view(torch.uint8),
            [n * itemsize for n in take],
            [n * itemsize for n in send],
        )
        for peer in peers:
            places[peer].copy_(incoming[peer].view(blocks[peer]))
        places[me].copy_(bits(sources[me]))
        return result

    return call


def _native(data: Data, group: fast_ulysses.Group, out: torch.Tensor | None) -> Call:
    splits: dict[str, Any] = {}
    if not data.even_splits():
        splits = {"scatter_splits": data.scatter_splits, "gather_splits": data.gather_splits}

    def call() -> torch.Tensor:
        return fast_ulysses.a2a(data.x, group, data.scatter_dim, data.gather_dim, **splits, out=out)

    return call


def _fast_ulysses(data: Data, group: fast_ulysses.Group) -> Call:
    return _native(data, group, None)


def _fast_ulysses_into(data: Data, group: fast_ulysses.Group) -> Call:
    return _native(data, group, data.expected.clone())


def _fast_ulysses_out(data: Data, group: fast_ulysses.Group) -> Call:
    return _native(data, group, group.empty(data.expected.shape, data.x.dtype))


def _copy(data: Data, _group: fast_ulysses.Group) -> Call:
    """One memcpy; where the result is larger than the input (uneven heads), the input is read again for the rest."""
    total = data.expected.numel() * data.expected.itemsize
    source_bytes = data.x.numel() * data.x.itemsize
    destination = torch.ones(total, dtype=torch.uint8)
    starts = range(0, total, source_bytes) if source_bytes else ()
    pieces = [(destination.data_ptr() + start, data.x.data_ptr(), min(source_bytes, total - start)) for start in starts]

    def call() -> torch.Tensor:
        for piece in pieces:
            ctypes.memmove(*piece)
        return destination

    return call


_MAKERS: dict[str, Callable[[Data, fast_ulysses.Group], Call]] = {
    "torch": _torch,
    "packed_fused": _packed_fused,
    "fast_ulysses": _fast_ulysses,
    "fast_ulysses_into": _fast_ulysses_into,
    "fast_ulysses_out": _fast_ulysses_out,
    "copy": _copy,
}


def is_copied(data: Data, destination: torch.Tensor) -> bool:
    """Whether ``copy`` left the input's bytes."""
    source = data.x.view(-1).view(torch.uint8)
    if not source.numel():
        return True
    return all(torch.equal(part, source[: part.numel()]) for part in destination.split(source.numel()))
