"""What happens when ranks disagree, come late, die, are interrupted, or leave without saying so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_ulysses
import pytest
import torch
import torch.distributed as dist
from coded import Exchange, coded, exchange_checked, group_of, moved
from fast_ulysses import CollectiveMismatch, FastUlyssesError, PeerError, PeerTimeout, StateError
from launcher import Pool, Ranks, Report

Launch = Callable[..., list[Report]]
Start = Callable[..., Ranks]


def faulted(group: fast_ulysses.Group) -> None:
    """After a fault every call says so, and destroy() returns at once."""
    with pytest.raises(StateError, match=r"earlier fault.*make a new one"):
        fast_ulysses.a2a(coded((1, 4, 2 * group.size, 8)), group)
    with pytest.raises(FastUlyssesError):
        group.check()
    start = time.monotonic()
    group.destroy()
    group.destroy()
    assert time.monotonic() - start < 2


def check_shapes_that_differ(context: Any, transport: str, rows: list[int]) -> str:
    group = fast_ulysses.init_group(context.pg, transport=transport, timeout=20)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.barrier()
    before = group.stats()
    x = torch.ones(1, rows[context.rank], 4, 8)
    with pytest.raises(CollectiveMismatch) as caught:
        fast_ulysses.a2a(x, group)
    assert group.stats()["native_bytes"] == before["native_bytes"]
    faulted(group)
    with group_of(context, transport) as fresh:
        exchange_checked(fresh, Exchange((1, 8, 4, 8)))
    return str(caught.value)


@pytest.mark.parametrize("rows", [[5, 4], [4, 4096]])
def test_ranks_with_other_shapes_are_both_named(pool: Pool, transport: str, rows: list[int]) -> None:
    for text in pool.run(check_shapes_that_differ, 2, transport, rows):
        for length in rows:
            assert f"[1, {2 * length}, 4, 8]" in text


def check_other_op(context: Any, transport: str) -> str:
    group = fast_ulysses.init_group(context.pg, transport=transport, timeout=20)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.barrier()
    x = torch.ones(1, 4, 4, 8)
    call = fast_ulysses.a2a if context.rank == 0 else lambda x, group: fast_ulysses.a2a_qkv(x, x, x, group)
    with pytest.raises(CollectiveMismatch) as caught:
        call(x, group)
    faulted(group)
    return str(caught.value)


def test_ranks_in_other_ops_are_named(pool: Pool, transport: str) -> None:
    for text in pool.run(check_other_op, 2, transport):
        assert "a2a_qkv" in text
        assert "is in a2a " in text


def check_late_rank(context: Any, transport: str) -> None:
    with group_of(context, transport, timeout=20) as group:
        exchange = Exchange((1, 8, 4, 8))
        if context.rank == 1:
            time.sleep(3)
        exchange_checked(group, exchange)
        group.check()


def test_a_late_rank_is_no_fault(pool: Pool, transport: str) -> None:
    """Scaled: three seconds in place of ninety."""
    pool.run(check_late_rank, 2, transport)


def check_absent_from_call(context: Any, transport: str) -> float:
    group = fast_ulysses.init_group(context.process_group(), transport=transport, timeout=1.5)
    exchange_checked(group, Exchange((1, 6, 6, 8)))
    context.barrier()
    start = time.monotonic()
    if context.rank == 1:
        time.sleep(6)
    else:
        with pytest.raises(PeerTimeout, match=r"a2a.*: not arrived after 1\.5 s: rank 1") as caught:
            fast_ulysses.a2a(torch.ones(1, 2, 6, 8), group)
        assert "rank 2" not in str(caught.value).split("not arrived")[-1]
    waited = time.monotonic() - start
    context.barrier()
    group.abort("the test is over")
    group.destroy()
    return waited


def test_a_rank_absent_from_a_call_is_named(pool: Pool, transport: str) -> None:
    waited = pool.run(check_absent_from_call, 3, transport)
    assert 1.4 < waited[0] < 6


def check_abort(context: Any, transport: str) -> float:
    group = fast_ulysses.init_group(context.process_group(), transport=transport, timeout=30)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.barrier()
    start = time.monotonic()
    if context.rank == 1:
        time.sleep(0.5)
        group.abort("out of coffee")
    else:
        with pytest.raises(PeerError, match=r"rank 1.*out of coffee"):
            fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
    waited = time.monotonic() - start
    faulted(group)
    context.barrier()
    return waited


def test_abort_reaches_a_waiting_peer(pool: Pool, transport: str) -> None:
    assert max(pool.run(check_abort, 2, transport)) < 3


def check_exception_in_block(context: Any, transport: str) -> None:
    context.pg = context.process_group()
    if context.rank == 1:
        with pytest.raises(KeyError), group_of(context, transport, timeout=30) as group:
            raise KeyError("lost")
        with pytest.raises(StateError, match="destroyed"):
            group.check()
    else:
        with (
            pytest.raises(PeerError, match=r"rank 1.*KeyError: 'lost'"),
            group_of(context, transport, timeout=30) as group,
        ):
            fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
    context.barrier()


def test_an_exception_inside_the_block_reaches_the_peers(pool: Pool, transport: str) -> None:
    pool.run(check_exception_in_block, 2, transport)


def check_one_call_fewer(context: Any) -> str:
    group = fast_ulysses.init_group(context.pg, transport="shm", timeout=20)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.barrier()
    call = group.destroy if context.rank == 1 else lambda: fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
    with pytest.raises(CollectiveMismatch) as caught:
        call()
    group.destroy()
    return str(caught.value)


def test_a_rank_with_one_call_fewer_is_seen_at_destroy(pool: Pool) -> None:
    for text in pool.run(check_one_call_fewer, 2):
        assert "destroy" in text
        assert "a2a" in text


def leave(context: Any, transport: str, how: str) -> None:
    group = fast_ulysses.init_group(transport=transport, name="left")
    assert group.transport == transport
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    if how == "destroy, then process group":
        group.destroy()
        dist.destroy_process_group()
    elif how == "process group, then destroy":
        dist.destroy_process_group()
        group.destroy()
    elif how == "process group alone":
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("how", "store"),
    [
        ("nothing", "tcp"),
        ("destroy, then process group", "file"),
        ("process group, then destroy", "tcp"),
        ("process group alone", "file"),
    ],
)
def test_ways_to_leave(launch: Launch, transport: str, how: str, store: str) -> None:
    for report in launch(leave, 2, transport, how, timeout=60, store=store):
        lines = [line for line in report.log.splitlines() if "destroy" in line]
        if "then" in how:
            assert not lines, report
        else:
            assert lines == [
                f"group left/{report.rank}of2#0 was never destroyed; call destroy() on its Group before exit"
            ]


def raise_before_call(context: Any, transport: str) -> None:
    group = fast_ulysses.init_group(transport=transport, timeout=25)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    if context.rank == 1:
        raise RuntimeError("a bug in the model")
    fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)


def test_a_peer_that_raised_is_named(launch: Launch, transport: str) -> None:
    waiting, raised = launch(raise_before_call, 2, transport, check=False)
    assert raised.exit_code == 1
    assert "a bug in the model" in raised.log
    assert waiting.exit_code == 1
    assert "PeerError" in waiting.error
    assert "rank 1" in waiting.error.split("PeerError")[-1]
    assert waiting.seconds < raised.seconds + 10


def exchange_until_peer_dies(context: Any, transport: str) -> tuple[str, float]:
    group = fast_ulysses.init_group(context.pg, transport=transport, timeout=60)
    x = torch.ones(1, 64, 2 * context.size, 64)
    before = time.monotonic()
    try:
        for call in range(1_000_000):
            before = time.monotonic()
            fast_ulysses.a2a(x, group)
            if call == 200:
                context.say("running")
    except PeerError as error:
        noticed = time.monotonic() - before
        faulted(group)
        return str(error), noticed
    raise AssertionError("no fault was noticed")


def left_behind() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "ulysses" in name} | {
        str(path) for path in Path("/tmp").glob("*fast_ulysses*")
    }


@pytest.mark.parametrize(("transport", "victim"), [("shm", 2), ("torch", 1)])
def test_a_killed_peer_is_noticed(start: Start, transport: str, victim: int) -> None:
    """Killed in the middle of its exchanges and not reaped until the others are done."""
    before = left_behind()
    ranks = start(3)
    ranks.submit(exchange_until_peer_dies, transport)
    for rank in range(3):
        ranks.said(rank, "running")
    ranks.signal(victim, signal.SIGKILL)
    others = [rank for rank in range(3) if rank != victim]
    for report in ranks.gather(30, others):
        text, noticed = report.value
        assert f"rank {victim}" in text
        assert noticed < 5
    assert ranks.finish(ranks=others) == [0, 0]
    assert left_behind() <= before


def wait_in_exchange(context: Any, transport: str) -> float | None:
    group = fast_ulysses.init_group(context.pg, transport=transport, timeout=60)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.say("ready")
    if context.rank == 1:
        context.listen()
        with pytest.raises(PeerError, match="rank 0"):
            fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
        group.destroy()
        return None
    try:
        fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
    except KeyboardInterrupt:
        caught = time.time()
        faulted(group)
        return caught
    raise AssertionError("not interrupted")


def test_control_c_ends_a_wait(start: Start, transport: str) -> None:
    ranks = start(2)
    ranks.submit(wait_in_exchange, transport)
    for rank in range(2):
        ranks.said(rank, "ready")
    time.sleep(0.5)
    sent = time.time()
    ranks.signal(0, signal.SIGINT)
    (report,) = ranks.gather(10, [0])
    assert report.value - sent < 1
    ranks.tell(1, "go on")
    ranks.gather(10, [1])
    assert ranks.finish() == [0, 0]


def wait_in_init(context: Any) -> float | None:
    context.say("ready")
    if context.rank == 1:
        context.listen()
        with pytest.raises(PeerError, match="rank 0 left the call: interrupted"):
            fast_ulysses.init_group()
        return None
    try:
        fast_ulysses.init_group()
    except KeyboardInterrupt:
        return time.time()
    raise AssertionError("not interrupted")


def test_control_c_ends_init_group(start: Start) -> None:
    ranks = start(2)
    ranks.submit(wait_in_init)
    for rank in range(2):
        ranks.said(rank, "ready")
    time.sleep(0.5)
    sent = time.time()
    ranks.signal(0, signal.SIGINT)
    (report,) = ranks.gather(10, [0])
    assert report.value - sent < 1
    ranks.tell(1, "go on")
    ranks.gather(10, [1])
    assert ranks.finish() == [0, 0]


def stopped_peer(context: Any) -> str | None:
    group = fast_ulysses.init_group(context.pg, transport="shm", timeout=3)
    exchange_checked(group, Exchange((1, 8, 4, 8)))
    context.say("ready")
    context.listen()
    if context.rank == 1:
        time.sleep(60)
    with pytest.raises(PeerTimeout) as caught:
        fast_ulysses.a2a(torch.ones(1, 4, 4, 8), group)
    faulted(group)
    return str(caught.value)


def test_a_stopped_peer_is_a_timeout(start: Start) -> None:
    """Alive but stopped: the wait is bounded and says so."""
    ranks = start(2)
    ranks.submit(stopped_peer)
    for rank in range(2):
        ranks.said(rank, "ready")
    ranks.signal(1, signal.SIGSTOP)
    ranks.tell(0, "go on")
    (report,) = ranks.gather(20, [0])
    assert "rank 1" in report.value
    assert ranks.finish(ranks=[0]) == [0]


def check_moved_is_armed(context: Any) -> None:
    with group_of(context, "shm") as group:
        x = coded((1, 4, 2 * context.size, 8))
        with pytest.raises(AssertionError), moved(group, x.nbytes // context.size - 2):
            fast_ulysses.a2a(x, group)
        group.transport = "torch"
        with pytest.raises(AssertionError), moved(group, 0):
            fast_ulysses.a2a(x, group)


def test_the_byte_check_is_armed(pool: Pool) -> None:
    """Negative control of the check that every exchange test uses."""
    pool.run(check_moved_is_armed, 2)
