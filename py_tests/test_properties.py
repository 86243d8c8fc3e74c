"""Random exchanges, bit for bit: shapes, dims, splits, strides, dtypes. The parent draws, the ranks run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import DTYPES, Exchange, assert_bits, coded, group_of, moved
from fast_ulysses import Group
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from launcher import Pool, RankFailure

# No shrinking where a failure takes the ranks down: every attempt would start them anew.
RANKS_SETTINGS = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: the order of its dims, the gap after the last one's elements, an offset."""

    order: tuple[int, ...]
    step: int
    offset: int

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [x.size(dim) for dim in self.order]
        sizes[-1] *= self.step
        memory = torch.zeros(torch.Size(sizes).numel() + self.offset, dtype=x.dtype)[self.offset :].view(sizes)
        if self.step > 1:
            memory = memory[..., :: self.step]
        back = [self.order.index(dim) for dim in range(x.dim())]
        return memory.permute(back).copy_(x)


@dataclass(frozen=True)
class Case:
    exchange: Exchange
    dtype: torch.dtype
    layout: Layout
    out: Layout | None
    window: bool
    salt: int


@st.composite
def split(draw: st.DrawFn, ranks: int, most: int = 5) -> tuple[int, tuple[int, ...] | None]:
    """A size and how it is split: None where the parts are equal, which may be left to the library."""
    if draw(st.booleans()):
        part = draw(st.integers(0, most))
        return part * ranks, None if draw(st.booleans()) else (part,) * ranks
    parts = tuple(draw(st.lists(st.integers(0, most), min_size=ranks, max_size=ranks)))
    return sum(parts), parts


def layouts(dims: int) -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout, st.permutations(range(dims)).map(tuple), st.sampled_from([1, 1, 2, 3]), st.sampled_from([0, 0, 1, 5])
    )


@st.composite
def cases(draw: st.DrawFn, ranks: int) -> Case:
    dims = draw(st.integers(3, 5))
    scatter, gather = draw(st.permutations(range(dims - 1)))[:2]
    sizes = draw(st.lists(st.integers(1, 4), min_size=dims - 1, max_size=dims - 1))
    sizes.append(draw(st.sampled_from([1, 2, 3, 8, 16, 33, 64])))
    sizes[scatter], scatter_splits = draw(split(ranks))
    sizes[gather], gather_splits = draw(split(ranks))
    if draw(st.booleans()):  # the same dims, counted from the end
        scatter, gather = scatter - dims, gather - dims
    exchange = Exchange(tuple(sizes), scatter, gather, scatter_splits, gather_splits)
    return Case(
        exchange,
        draw(st.sampled_from(DTYPES)),
        draw(layouts(dims)),
        draw(st.none() | layouts(dims)),
        draw(st.booleans()),
        draw(st.integers(0, 1000)),
    )


def run_case(group: Group, case: Case) -> None:
    exchange = case.exchange
    counted = len(exchange.sizes)
    positive = replace(exchange, scatter_dim=exchange.scatter_dim % counted, gather_dim=exchange.gather_dim % counted)
    whole = coded(exchange.sizes, case.dtype, case.salt)
    x = case.layout.apply(exchange.input(whole, group))
    expected = exchange.result(whole, group)
    count = positive.peer_bytes(case.dtype, group)
    with moved(group, count):
        y = fast_ulysses.a2a(x, group, **exchange.arguments())
    assert y.is_contiguous()
    assert_bits(y, expected, str(case))
    if case.out is not None:
        out = group.empty(expected.shape, case.dtype) if case.window else case.out.apply(torch.zeros_like(expected))
        with moved(group, count):
            fast_ulysses.a2a(x, group, **exchange.arguments(), out=out)
        assert_bits(out, expected, f"out of {case}")


def check_cases(context: Any, transport: str, several: list[Case]) -> None:
    with group_of(context, transport) as group:
        for case in several:
            run_case(group, case)


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_exchange(pool: Pool, transport: str, ranks: int) -> None:
    seen: list[Case] = []

    @RANKS_SETTINGS
    @given(cases(ranks))
    def draw(case: Case) -> None:
        seen.append(case)

    draw()
    assert len(seen) >= 50
    assert len({case.dtype for case in seen}) >= 6
    pool.run(check_cases, ranks, transport, seen, timeout=120)


@dataclass(frozen=True)
class Gqa:
    """kv heads, query heads to each, and how the query heads are split."""

    kv_heads: int
    per_kv: int
    splits: tuple[int, ...] | None
    tokens: tuple[int, ...]


@st.composite
def gqas(draw: st.DrawFn, ranks: int) -> Gqa:
    tokens = tuple(draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)))
    per_kv = draw(st.integers(1, 4))
    if draw(st.booleans()):  # whole kv heads
        kv = draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks).filter(any))
        return Gqa(sum(kv), per_kv, tuple(n * per_kv for n in kv), tokens)
    # one kv head for all ranks, each with any part of its query heads
    splits = tuple(draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks).filter(any)))
    return Gqa(1, sum(splits), splits, tokens)


def run_gqa(group: Group, case: Gqa) -> None:
    q_heads = case.kv_heads * case.per_kv
    exchange = Exchange((2, sum(case.tokens), q_heads, 4), 2, 1, case.splits, case.tokens)
    q, k, v = (
        coded((2, sum(case.tokens), heads, 4), torch.bfloat16, salt)
        for salt, heads in enumerate((q_heads, case.kv_heads, case.kv_heads))
    )
    got = fast_ulysses.a2a_qkv(*(exchange.input(t, group) for t in (q, k, v)), group, **exchange.arguments())
    parts = exchange.parts(2, case.splits, group.size)
    own = range(sum(parts[: group.rank]), sum(parts[: group.rank + 1]))
    needed = sorted({head // case.per_kv for head in own})
    assert_bits(got[0], exchange.result(q, group), f"q of {case}")
    assert_bits(got[1], k[:, :, needed], f"k of {case}")
    assert_bits(got[2], v[:, :, needed], f"v of {case}")


def check_gqas(context: Any, transport: str, several: list[Gqa]) -> None:
    with group_of(context, transport) as group:
        for case in several:
            run_gqa(group, case)


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_grouping_of_heads(pool: Pool, transport: str, ranks: int) -> None:
    seen: list[Gqa] = []

    @RANKS_SETTINGS
    @given(gqas(ranks))
    def draw(case: Gqa) -> None:
        seen.append(case)

    draw()
    assert len(seen) >= 50
    assert any(case.kv_heads == 1 < case.per_kv for case in seen)
    assert any(case.kv_heads > 1 < case.per_kv for case in seen)
    pool.run(check_gqas, ranks, transport, seen)


def check_wrong_case(context: Any, case: Case) -> None:
    with group_of(context, "shm") as group:
        wrong = replace(case, exchange=replace(case.exchange, scatter_splits=(1, 3)))
        whole = coded(wrong.exchange.sizes, case.dtype)
        got = fast_ulysses.a2a(wrong.exchange.input(whole, group), group, **case.exchange.arguments())
        assert_bits(got, wrong.exchange.result(whole, group), "other splits")


def test_a_wrong_result_fails(pool: Pool) -> None:
    """Negative control."""
    case = Case(Exchange((1, 4, 4, 8)), torch.float32, Layout((0, 1, 2, 3), 1, 0), None, False, 0)
    with pytest.raises(RankFailure, match="other splits"):
        pool.run(check_wrong_case, 2, case)
