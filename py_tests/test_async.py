"""Exchanges that run while their caller goes on: `Group.all_to_all_single(x, async_op=True)`."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import Exchange, assert_bits, coded, exchange_checked, group_of, moved
from fast_ulysses import Group, InvalidArgument, PeerError, StateError
from launcher import Pool, Ranks, Report

Start = Callable[..., Ranks]


def input_of(rank: int, size: int, call: int, rows: int) -> torch.Tensor:
    return coded((size * rows, 3, 8), torch.float32, 1 + rank + size * call)


def expected_of(group: Group, call: int, rows: int) -> torch.Tensor:
    inputs = [input_of(rank, group.size, call, rows) for rank in range(group.size)]
    return torch.cat([x[group.rank * rows :][:rows] for x in inputs])


def check_many(context: Any, transport: str, count: int) -> None:
    """Sizes from nothing to 3 MB, waited for from the last to the first."""
    with group_of(context, transport) as group:
        rows = [0, 1, 40, 700, 30_000][: 5 if transport == "shm" else 4]
        flights = []
        for call in range(count):
            x = input_of(group.rank, group.size, call, rows[call % len(rows)])
            flights.append(group.all_to_all_single(x, async_op=True))
        for call, (result, work) in reversed(list(enumerate(flights))):
            work.wait()
            assert work.is_completed()
            work.wait()  # a second time does nothing
            assert_bits(result, expected_of(group, call, rows[call % len(rows)]), f"call {call}")
        for call, (result, _) in enumerate(flights):  # none has the memory of another
            assert_bits(result, expected_of(group, call, rows[call % len(rows)]), f"call {call} in the end")
        assert len({result.untyped_storage().data_ptr() for result, _ in flights if result.numel()}) == sum(
            result.numel() > 0 for result, _ in flights
        )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_dozens_in_flight(pool: Pool, transport: str, ranks: int) -> None:
    pool.run(check_many, ranks, transport, 40, timeout=120)


def check_independent_results(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        first, work = group.all_to_all_single(input_of(group.rank, group.size, 0, 50), async_op=True)
        for _ in range(5):
            fast_ulysses.all_to_all_single(torch.zeros(50 * group.size, 3, 8), group)
            group.all_to_all_single(torch.zeros(50 * group.size, 3, 8), async_op=True)
        work.wait()
        group.trim()
        assert_bits(first, expected_of(group, 0, 50), "after later calls")
    assert_bits(first, expected_of(group, 0, 50), "after destroy()")


def test_results_do_not_depend_on_later_calls(pool: Pool, transport: str) -> None:
    pool.run(check_independent_results, 2, transport)


def check_order(context: Any, transport: str) -> None:
    """Calls that return at once and calls that block, mixed: every rank meets the others' in the order of the program.

    One rank is always late, so that the others' queues are not empty when the blocking call comes.
    """
    with group_of(context, transport) as group:
        exchange = Exchange((1, 4 * group.size, 2 * group.size, 16))
        for call in range(12):
            if call % group.size == group.rank:
                time.sleep(0.02)
            flights = [
                group.all_to_all_single(input_of(group.rank, group.size, call + k, 9), async_op=True) for k in range(3)
            ]
            whole = coded(exchange.sizes, torch.float32, call)
            got = fast_ulysses.a2a(exchange.input(whole, group), group)
            assert_bits(got, exchange.result(whole, group), f"blocking call {call}")
            assert all(work.is_completed() for _, work in flights)  # the blocking call came after them
            for k, (result, work) in enumerate(flights):
                work.wait()
                assert_bits(result, expected_of(group, call + k, 9), f"call {call}, {k}")


def test_a_blocking_call_comes_after_those_under_way(pool: Pool, transport: str) -> None:
    pool.run(check_order, 2, transport)


def check_not_kept(context: Any, transport: str) -> None:
    """Neither the input nor the Work is kept by the caller, whose memory is then used again, while a peer is late."""
    with group_of(context, transport) as group:
        results = []
        for call in range(6):
            if group.rank == 1:
                context.barrier()  # the other rank has dropped its tensors and filled their memory
            x = input_of(group.rank, group.size, call, 400)
            result, work = group.all_to_all_single(x, async_op=True)
            results.append(result)
            size = x.shape
            del x, work
            gc.collect()
            garbage = [torch.full(size, float("nan")) for _ in range(8)]
            if group.rank == 0:
                context.barrier()
            del garbage
        fast_ulysses.all_to_all_single(torch.zeros(group.size), group)
        for call, result in enumerate(results):
            assert_bits(result, expected_of(group, call, 400), f"call {call}")


def test_the_input_lives_although_nobody_keeps_it(pool: Pool) -> None:
    """On a torch.distributed group the call is done when it returns, so there the barrier in it would never come."""
    pool.run(check_not_kept, 2, "shm")


def check_completion(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        x = input_of(group.rank, group.size, 0, 20)
        with moved(group, x.numel() * 4 // 2):
            if group.rank == 1:
                context.barrier()
            _, work = group.all_to_all_single(x, async_op=True)
            if group.rank == 0:
                assert not work.is_completed()  # the peer has not begun
                context.barrier()
            deadline = time.monotonic() + 30
            while not work.is_completed():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            start = time.monotonic()
            work.wait()
            assert time.monotonic() - start < 5
        result, work = group.all_to_all_single(x)  # async_op is False
        assert work.is_completed()
        assert_bits(result, expected_of(group, 0, 20), "a blocking call")


def test_completion_can_be_asked_for(pool: Pool) -> None:
    pool.run(check_completion, 2, "shm")


def check_needs_grad(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        x = torch.ones(2 * group.size, 3, requires_grad=True)
        with pytest.raises(InvalidArgument, match="needs grad"):
            group.all_to_all_single(x, async_op=True)
        with pytest.raises(InvalidArgument, match="dim 0"):
            group.all_to_all_single(torch.ones(2 * group.size + 1), async_op=True)
        assert group.stats()["calls"] == 0
        with torch.no_grad():
            result, work = group.all_to_all_single(x, async_op=True)
        work.wait()
        assert not result.requires_grad
        with torch.inference_mode():
            group.all_to_all_single(x, async_op=True)[1].wait()


def test_an_input_that_needs_grad(pool: Pool, transport: str) -> None:
    pool.run(check_needs_grad, 2, transport)


def check_peer_dies(context: Any, transport: str) -> float:
    group = fast_ulysses.init_group(context.pg, transport=transport, timeout=60)
    x = torch.ones(2 * group.size, 3)
    group.all_to_all_single(x, async_op=True)[1].wait()
    if context.rank == 1:
        context.say("ready")
        time.sleep(600)
    works = [group.all_to_all_single(x, async_op=True)[1] for _ in range(3)]
    context.say("under way")
    start = time.monotonic()
    with pytest.raises(PeerError, match="rank 1"):
        works[0].wait()
    waited = time.monotonic() - start
    for work in works[1:]:
        with pytest.raises((PeerError, StateError), match="rank 1"):
            work.wait()
    with pytest.raises(StateError, match="earlier fault"):
        group.all_to_all_single(x, async_op=True)[1].wait()
    group.destroy()
    return waited


def test_wait_raises_when_a_peer_dies(start: Start) -> None:
    ranks = start(2)
    ranks.submit(check_peer_dies, "shm")
    ranks.said(1, "ready")
    ranks.said(0, "under way")
    ranks.signal(1, signal.SIGKILL)
    (report,) = ranks.gather(60, ranks=[0])
    assert report.value < 20


def check_abort(context: Any) -> None:
    group = fast_ulysses.init_group(context.pg, transport="shm", timeout=60)
    if group.rank == 0:
        _, work = group.all_to_all_single(torch.ones(2), async_op=True)
        with pytest.raises(PeerError, match="enough"):
            work.wait()
    else:
        time.sleep(0.2)
        group.abort("enough")
    group.destroy()


def test_wait_raises_when_a_peer_aborts(pool: Pool) -> None:
    pool.run(check_abort, 2)


def check_destroy(context: Any, transport: str) -> None:
    group = fast_ulysses.init_group(context.pg, transport=transport)
    if group.rank == 1:
        time.sleep(0.3)
    flights = [
        group.all_to_all_single(input_of(group.rank, group.size, call, 300), async_op=True) for call in range(10)
    ]
    group.destroy()
    for call, (result, work) in enumerate(flights):
        assert work.is_completed()
        work.wait()
        assert_bits(result, expected_of(group, call, 300), f"call {call}")
    with pytest.raises(StateError, match="was destroyed"):
        group.all_to_all_single(torch.ones(2 * group.size), async_op=True)


def test_destroy_completes_what_is_under_way(pool: Pool, transport: str) -> None:
    pool.run(check_destroy, 2, transport)


def in_thread(action: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def check_threads(context: Any, transport: str) -> None:
    """The group is made in one thread and used in another; what one began, the other waits for."""
    with group_of(context, transport) as group:
        flights: list[Any] = []

        def use() -> None:
            exchange_checked(group, Exchange((1, 4 * group.size, 2 * group.size, 16)))
            for call in range(5):
                flights.append(group.all_to_all_single(input_of(group.rank, group.size, call, 50), async_op=True))

        def train() -> None:
            x = torch.ones(1, 4, 2 * group.size, 8, requires_grad=True)
            (fast_ulysses.a2a(x, group) * 3).sum().backward()
            assert x.grad is not None
            assert x.grad.unique().tolist() == [3.0]

        in_thread(use)
        for call, (result, work) in enumerate(flights):
            work.wait()
            assert_bits(result, expected_of(group, call, 50), f"call {call}")
        in_thread(train)
        result, work = group.all_to_all_single(input_of(group.rank, group.size, 9, 50), async_op=True)
        in_thread(work.wait)
        assert_bits(result, expected_of(group, 9, 50), "waited for in another thread")


def test_a_second_thread(pool: Pool, transport: str) -> None:
    pool.run(check_threads, 2, transport)


def check_leaves_with_work_under_way(context: Any) -> None:
    group = fast_ulysses.init_group(context.process_group(), transport="shm", timeout=60)
    if context.rank == 0:  # its thread waits for rank 1 while the interpreter goes
        group.all_to_all_single(torch.ones(4, 3), async_op=True)
        time.sleep(0.05)
    else:
        time.sleep(2)


def test_exit_with_work_under_way_and_without_destroy(launch: Callable[..., list[Report]]) -> None:
    """A thread that asks for the GIL of a leaving interpreter is ended by it, and would take the process along."""
    assert [report.exit_code for report in launch(check_leaves_with_work_under_way, 2)] == [0, 0]
