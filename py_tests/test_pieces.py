"""The smaller parts: host meetings, sharding, fakes, errors, and the launcher that the other tests stand on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import fast_ulysses
import pytest
import torch
import torch.distributed as dist
from coded import assert_bits, coded, group_of
from fast_ulysses import CollectiveMismatch, InvalidArgument, PeerTimeout
from fast_ulysses.bootstrap import MeetingFailed, StoreChannel
from launcher import RankFailure, Ranks, Report
from torch._subclasses.fake_tensor import FakeTensorMode

Launch = Callable[..., list[Report]]
ops = torch.ops.fast_ulysses


def as_threads(count: int, act: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def channel(store: dist.Store, rank: int, size: int, timeout_s: float = 20.0) -> StoreChannel:
    return StoreChannel(store, "channel", rank, size, timeout_s, "a test")


def test_meetings_gather_by_rank_and_leave_no_keys() -> None:
    store = dist.HashStore()
    keys = store.num_keys()

    def act(rank: int) -> list[list[bytes]]:
        mine = channel(store, rank, 3)
        gathered = [mine.allgather(bytes([rank]) * (number + rank)) for number in range(20)]
        mine.finish()
        mine.finish()
        return gathered

    expected = [[bytes([rank]) * (number + rank) for rank in range(3)] for number in range(20)]
    assert as_threads(3, act) == [expected] * 3
    assert store.num_keys() == keys


def test_meeting_names_who_is_missing_and_stays_failed() -> None:
    store = dist.HashStore()
    results = as_threads(2, lambda rank: channel(store, 2 * rank, 4, 0.3).allgather(b"x"))
    assert all(isinstance(error, PeerTimeout | MeetingFailed) for error in results)
    assert any("ranks 1, 3" in str(error) for error in results)
    with pytest.raises(MeetingFailed, match="in vain for ranks 1, 3"):
        channel(store, 1, 4).allgather(b"late")


def test_meeting_ends_when_a_rank_says_it_will_not_come() -> None:
    store = dist.HashStore()

    def act(rank: int) -> Any:
        mine = channel(store, rank, 2)
        if rank == 1:
            time.sleep(0.2)
            return mine.fail("no memory")
        return mine.allgather(b"")

    start = time.monotonic()
    error = as_threads(2, act)[0]
    assert time.monotonic() - start < 5
    assert isinstance(error, MeetingFailed)
    assert (error.rank, error.reason) == (1, "no memory")


def check_sharding(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        P = context.size
        for dtype in (torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex64):
            whole = coded((2, 30, 3, 4), dtype)
            part = fast_ulysses.shard(whole, group)
            assert part.size(1) == fast_ulysses.balanced_split(30, P)[group.rank]
            assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
            assert_bits(fast_ulysses.unshard(part, group.handle), whole)
            positions = fast_ulysses.shard_positions(30, group)
            assert_bits(whole[:, positions], part)
            assert positions.dtype == torch.int64
            splits = [0] * (P - 1) + [3]
            part = fast_ulysses.shard(whole, group, -2, splits)
            assert_bits(fast_ulysses.unshard(part, group, -2, splits), whole)
        empty = fast_ulysses.unshard(torch.empty(2, 0), group)
        assert empty.shape == (2, 0)
        with pytest.raises(InvalidArgument, match="add up to 30"):
            fast_ulysses.shard(whole, group, 1, [1] * P)
        with pytest.raises(InvalidArgument, match="dim 4"):
            fast_ulysses.shard(whole, group, 4)
        with pytest.raises(InvalidArgument, match="splits"):
            fast_ulysses.unshard(part, group, 1, [1] * P)
        x = torch.ones(2, P, requires_grad=True)
        fast_ulysses.shard(x, group).sum().backward()
        assert x.grad is not None
        assert x.grad.sum() == 2
    group = fast_ulysses.init_group(context.process_group(), transport=transport, timeout=20)
    with pytest.raises(CollectiveMismatch, match=r"unshard float32 \[\*, 3\].*unshard float32 \[\*, 4\]"):
        fast_ulysses.unshard(torch.ones(2, 3 + (group.rank == P - 1)), group, 0)
    group.destroy()


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharding(pool: Any, transport: str, ranks: int) -> None:
    pool.run(check_sharding, ranks, transport)


def test_fakes_need_the_handle_alone() -> None:
    handle = "never-made/1of3#7"
    for device in ("meta", None):
        with FakeTensorMode() if device is None else torch.device(device):
            x = torch.empty(2, 6, 9, 8)
            assert ops.a2a(x, handle).shape == (2, 18, 3, 8)
            assert ops.a2a(x, handle, 1, 2).shape == (2, 2, 27, 8)
            y = ops.a2a(x, handle, 2, 1, [4, 5, 0], [6, 6, 2])
            assert (y.shape, y.is_contiguous(), y.device) == ((2, 14, 5, 8), True, x.device)
            shapes = [t.shape for t in ops.a2a_qkv(x, x, x[:, :, :3], handle)]
            assert shapes == [(2, 18, 3, 8), (2, 18, 3, 8), (2, 18, 1, 8)]
            assert ops.all_to_all_single(x.transpose(0, 1), handle).shape == (6, 2, 9, 8)
            assert ops.a2a_out(x, handle, out=torch.empty(2, 18, 3, 8)) is None
            with pytest.raises(RuntimeError, match=r"\[2, 18, 3, 8\]"):
                ops.a2a_out(x, handle, out=torch.empty(2, 18, 9, 8))
            with pytest.raises(RuntimeError, match="8 does not divide by 3"):
                ops.a2a(x[:, :, :8], handle)
            with pytest.raises(InvalidArgument, match="not a group handle"):
                ops.a2a(x, "never-made")


def test_errors_are_their_builtin_twins_too() -> None:
    twins = {
        "InvalidArgument": ValueError,
        "StateError": RuntimeError,
        "TransportError": RuntimeError,
        "CudaError": RuntimeError,
        "PeerTimeout": TimeoutError,
        "PeerError": ConnectionError,
        "CollectiveMismatch": RuntimeError,
    }
    for name, twin in twins.items():
        error = getattr(fast_ulysses, name)
        assert issubclass(error, twin)
        assert issubclass(error, fast_ulysses.FastUlyssesError)
        assert getattr(fast_ulysses._C, name) is error
        assert (error.__module__, error.__name__) == ("fast_ulysses", name)
    with pytest.raises(InvalidArgument, match="parts"):
        fast_ulysses.balanced_split(3, 0)
    assert fast_ulysses.balanced_split(30, 4) == [8, 8, 7, 7]


def raise_on_one(context: Any) -> int:
    if context.rank == 1:
        raise KeyError("planted")
    if context.rank == 2:
        time.sleep(600)
    return int(context.rank)


def exit_on_one(context: Any) -> None:
    if context.rank == 1:
        raise SystemExit(7)
    time.sleep(600)


def sleep_on_one(context: Any) -> None:
    if context.rank == 1:
        time.sleep(600)


def test_the_launcher_shows_the_first_failure_and_ends_the_rest(start: Callable[..., Ranks]) -> None:
    ranks = start(3)
    ranks.submit(raise_on_one)
    with pytest.raises(RankFailure, match=r"rank 1 failed first(?s:.*)KeyError: 'planted'"):
        ranks.gather(60)
    assert all(process.poll() is not None for process in ranks.processes)


def test_the_launcher_has_a_deadline_and_shows_stacks(start: Callable[..., Ranks]) -> None:
    ranks = start(2)
    ranks.submit(sleep_on_one)
    with pytest.raises(RankFailure, match=r"ranks \[1\] were not done within 15 s(?s:.*)in sleep_on_one"):
        ranks.gather(15)
    assert all(process.poll() is not None for process in ranks.processes)


def test_the_launcher_sees_exit_codes(launch: Launch) -> None:
    with pytest.raises(RankFailure, match=r"rank 1 failed first(?s:.*)SystemExit: 7"):
        launch(exit_on_one, 2)
