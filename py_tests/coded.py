"""Position-coded tensors, bit comparison, and exchanges checked against the global tensor.

Every element's bits are made from its global index (b, global token, global head, d), so a misplaced element shows
whatever the dtype; random data with a tolerance would not show it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fast_ulysses
import torch
from fast_ulysses import Group

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # the golden ratio in 64 bits, as a signed integer
_ODD_32 = 0x9E3779B1 - (1 << 32)

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int64,
    torch.bool,
    torch.complex64,
]


def coded(shape: Sequence[int], dtype: torch.dtype = torch.bfloat16, salt: int = 0) -> torch.Tensor:
    """Bits that are a function of the element's index alone: one to one for 4 and 8 bytes, mixed for 1 and 2."""
    count = math.prod(shape)
    if dtype.itemsize == 8:
        index = torch.arange(count, dtype=torch.int64)
        return index.add_(salt << 40).mul_(_ODD).view(dtype).view(*shape)
    bits = torch.arange(count, dtype=torch.int32).mul_(_ODD_32).add_(salt * 0x5EBCA6B)  # wraps around, as it should
    if dtype.itemsize == 4:
        return bits.view(dtype).view(*shape)
    bits = bits.bitwise_right_shift_(13)
    if dtype is torch.bool:
        return bits.bitwise_and_(1).to(torch.bool).view(*shape)
    return bits.to(torch.int16 if dtype.itemsize == 2 else torch.int8).view(dtype).view(*shape)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and every bit, NaN payloads included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    carrier = _CARRIERS[a.itemsize]
    return torch.equal(a.contiguous().view(carrier), b.contiguous().view(carrier))


def assert_bits(a: torch.Tensor, b: torch.Tensor, what: str = "") -> None:
    assert a.shape == b.shape, f"{what}: shape {list(a.shape)}, expected {list(b.shape)}"
    assert a.dtype == b.dtype, f"{what}: {a.dtype}, expected {b.dtype}"
    if not same_bits(a, b):
        carrier = _CARRIERS[a.itemsize]
        wrong = (a.contiguous().view(carrier) != b.contiguous().view(carrier)).nonzero()
        raise AssertionError(f"{what}: {len(wrong)} of {a.numel()} elements differ, the first at {wrong[0].tolist()}")


@dataclass(frozen=True)
class Exchange:
    """One exchange as everybody sees it: the global sizes, the dims, and the splits (None: equal parts)."""

    sizes: tuple[int, ...]
    scatter_dim: int = 2
    gather_dim: int = 1
    scatter_splits: tuple[int, ...] | None = None
    gather_splits: tuple[int, ...] | None = None

    def inverse(self) -> Exchange:
        return Exchange(self.sizes, self.gather_dim, self.scatter_dim, self.gather_splits, self.scatter_splits)

    def parts(self, dim: int, splits: tuple[int, ...] | None, size: int) -> tuple[int, ...]:
        return splits or (self.sizes[dim] // size,) * size

    def part(self, whole: torch.Tensor, dim: int, splits: tuple[int, ...] | None, group: Group) -> torch.Tensor:
        parts = self.parts(dim, splits, group.size)
        return whole.narrow(dim, sum(parts[: group.rank]), parts[group.rank])

    def input(self, whole: torch.Tensor, group: Group) -> torch.Tensor:
        return self.part(whole, self.gather_dim, self.gather_splits, group)

    def result(self, whole: torch.Tensor, group: Group) -> torch.Tensor:
        return self.part(whole, self.scatter_dim, self.scatter_splits, group)

    def arguments(self) -> dict[str, Any]:
        return {
            "scatter_dim": self.scatter_dim,
            "gather_dim": self.gather_dim,
            "scatter_splits": None if self.scatter_splits is None else list(self.scatter_splits),
            "gather_splits": None if self.gather_splits is None else list(self.gather_splits),
        }

    def peer_bytes(self, dtype: torch.dtype, group: Group) -> int:
        """What this rank has to send to others, to the byte."""
        scatter = self.parts(self.scatter_dim, self.scatter_splits, group.size)
        gather = self.parts(self.gather_dim, self.gather_splits, group.size)
        rest = math.prod(n for d, n in enumerate(self.sizes) if d not in (self.scatter_dim, self.gather_dim))
        return rest * gather[group.rank] * (sum(scatter) - scatter[group.rank]) * dtype.itemsize


@contextlib.contextmanager
def moved(group: Group, native_bytes: int, calls: int = 1) -> Iterator[None]:
    """Asserts that the calls inside went the way the group says, natively with exactly so many bytes to peers."""
    before = group.stats()
    yield
    after = group.stats()
    assert after["calls"] - before["calls"] == calls
    fallback_calls = after["fallback_calls"] - before["fallback_calls"]
    sent = after["native_bytes"] - before["native_bytes"]
    if group.transport == "torch":
        assert (fallback_calls, sent) == (calls, 0)
        assert group.fallback_reason in after["fallback_reasons"]
    else:
        assert group.transport == "shm"
        assert (fallback_calls, sent) == (0, native_bytes)


def exchange_checked(group: Group, exchange: Exchange, dtype: torch.dtype = torch.bfloat16, salt: int = 0) -> None:
    """Collective: one exchange and its inverse, compared with the global tensor bit for bit, bytes counted."""
    whole = coded(exchange.sizes, dtype, salt)
    x, expected = exchange.input(whole, group), exchange.result(whole, group)
    with moved(group, exchange.peer_bytes(dtype, group)):
        y = fast_ulysses.a2a(x, group, **exchange.arguments())
    assert y.is_contiguous()
    assert_bits(y, expected, f"{exchange} {dtype}")
    back = exchange.inverse()
    with moved(group, back.peer_bytes(dtype, group)):
        z = fast_ulysses.a2a(y, group, **back.arguments())
    assert_bits(z, x, f"{back} {dtype}")


@contextlib.contextmanager
def group_of(context: Any, transport: str, **options: Any) -> Iterator[Group]:
    """A group over the test's ranks on exactly this transport, destroyed at the end."""
    with fast_ulysses.init_group(context.pg, transport=transport, **options) as group:
        assert group.transport == transport
        assert (group.rank, group.size) == (context.rank, context.size)
        yield group


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """FAST_ULYSSES_TEST_FAULT for the groups made inside."""
    os.environ["FAST_ULYSSES_TEST_FAULT"] = fault
    try:
        yield
    finally:
        del os.environ["FAST_ULYSSES_TEST_FAULT"]
