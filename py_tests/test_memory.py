"""What calls and groups leave behind: nothing. And the memory of large results, which is used again."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import Exchange, assert_bits, coded, exchange_checked, group_of
from launcher import Report

Launch = Callable[..., list[Report]]
MIB = 1 << 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def least_growth(use: Callable[[], None], rounds: int = 3) -> int:
    """By how many bytes resident memory grows in the round in which it grows least: a leak shows in every round."""
    grown = []
    for _ in range(rounds):
        before = resident_bytes()
        use()
        grown.append(resident_bytes() - before)
    return min(grown)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# Large results


def input_of_mib(mib: int, size: int, value: float = 0.0) -> torch.Tensor:
    return torch.full((1, mib * 1024, size, 256 // size), value)


def check_reuse(context: Any) -> None:
    with group_of(context, "shm") as group:
        x = input_of_mib(4, group.size)

        def addresses(call: Callable[[], Any]) -> set[int]:
            """Of six calls, each of whose results are dropped before the next."""
            return set().union(*({t.data_ptr() for t in call()} for _ in range(6)))

        one = addresses(lambda: [fast_ulysses.a2a(x, group)])
        assert len(one) == 1
        three = addresses(lambda: fast_ulysses.a2a_qkv(x, x, x, group))
        assert len(three) == 3
        assert one < three
        assert addresses(lambda: [fast_ulysses.all_to_all_single(x.transpose(0, 2), group)]) <= three
        assert addresses(lambda: [group.all_to_all_single(x.transpose(0, 2))[0]]) <= three
        view = fast_ulysses.a2a(x, group)[:, 5:, :, 3:]  # a view keeps the whole
        kept = view.data_ptr()
        others = [fast_ulysses.a2a(x + 1, group) for _ in range(3)]
        assert all(not (t.data_ptr() <= kept < t.data_ptr() + t.numel() * 4) for t in others)
        assert not view.any()
    assert not view.any()
    assert others[0].data_ptr() % 64 == 0
    shared = others[0].untyped_storage()
    del others
    assert torch.tensor([], dtype=torch.float32).set_(shared)[0] == 1  # so does its storage


def check_live_results(context: Any) -> None:
    """Results kept and dropped at random; every one keeps its numbers."""
    draw = torch.Generator().manual_seed(3)
    live: list[tuple[float, torch.Tensor]] = []
    with group_of(context, "shm") as group:
        for call in range(60):
            mib = int(torch.randint(1, 9, (), generator=draw))
            live.append((float(call), fast_ulysses.a2a(input_of_mib(mib, group.size, call), group)))
            if len(live) > 6:
                del live[int(torch.randint(len(live), (), generator=draw))]
            spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * 4) for _, t in live)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        for value, result in live:
            assert (result == value).all()
    for value, result in live:
        assert (result == value).all()


def check_varying_sizes(context: Any) -> None:
    """600 sizes, the largest of 16 MiB."""
    draw = torch.Generator().manual_seed(4)
    with group_of(context, "shm") as group:
        x = input_of_mib(16, group.size)
        start = resident_bytes()
        fast_ulysses.a2a(x, group)

        def use() -> None:
            for _ in range(200):
                tokens = int(torch.randint(1024, 16 * 1024, (), generator=draw))
                fast_ulysses.a2a(x[:, :tokens], group)

        grown = least_growth(use)
        assert grown < 4 * MIB, f"{grown / MIB:.1f} MiB more"
        whole = resident_bytes() - start  # windows and results of the largest call
        assert whole < 128 * MIB, f"{whole / MIB:.0f} MiB in all"


def check_large_results(context: Any) -> None:
    check_varying_sizes(context)
    check_reuse(context)
    check_live_results(context)


def test_memory_of_large_results(launch: Launch) -> None:
    launch(check_large_results, 2, timeout=120)


# Many calls, many groups


def check_many_calls(context: Any, transport: str, calls: int) -> None:
    with group_of(context, transport) as group:
        exchange = Exchange((1, 128, 8, 64))
        whole = coded(exchange.sizes)
        x, expected = exchange.input(whole, group), exchange.result(whole, group).contiguous()
        leaf = torch.ones(1, 4, 2 * group.size, 8, requires_grad=True)
        parts = torch.ones(2 * group.size, 8)

        def use(count: int) -> None:
            for call in range(count):
                y = fast_ulysses.a2a(x, group)
                if call % 100 == 0:
                    assert_bits(y, expected, f"call {call}")
                    leaf.grad = None
                    fast_ulysses.a2a(leaf, group).sum().backward()
                if call % 5 == 0:
                    group.all_to_all_single(parts, async_op=True)

        use(calls // 10)
        before = (descriptors(), threads(), len(group.plans))
        grown = least_growth(lambda: use(calls // 3))
        assert (descriptors(), threads(), len(group.plans)) == before
        limit = MIB // 4 if transport == "shm" else 2 * MIB  # Gloo's own calls leave half a KiB each, and jitter
        assert grown < limit, f"{grown / MIB:.2f} MiB more"


def check_many_groups(context: Any, transport: str, cycles: int) -> None:
    def cycle() -> None:
        with group_of(context, transport) as group:
            exchange_checked(group, Exchange((1, 1024, 8, 64)))
            group.all_to_all_single(torch.ones(2 * group.size, 8), async_op=True)

    def some_cycles() -> None:
        for _ in range(cycles // 2):
            cycle()

    some_cycles()
    before = (descriptors(), threads())
    grown = least_growth(some_cycles, rounds=2)
    assert (descriptors(), threads()) == before
    assert grown < 2 * MIB, f"{grown / MIB:.1f} MiB more"  # one window is 512 KiB, and each round makes ten


def check_flat(context: Any, transport: str, calls: int, cycles: int) -> None:
    check_many_calls(context, transport, calls)
    check_many_groups(context, transport, cycles)


@pytest.mark.parametrize(("transport", "calls"), [("shm", 3000), ("torch", 400)])
def test_calls_and_groups_leave_nothing(launch: Launch, transport: str, calls: int) -> None:
    launch(check_flat, 2, transport, calls, 20, timeout=150)
