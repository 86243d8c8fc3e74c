"""Host-side meetings of exactly the members of a process group, over the group's own c10d store.

Used only where hosts may meet: `init_group`, growth, `reserve`, `trim`, `group.empty` and `destroy`. A store needs no
GPU, no NCCL and no network interface beyond the one the process group already has, and it serves every backend.

Who writes which key, under ``fast_ulysses/<n>/<channel>/`` in the group's own (already prefixed) store, where ``n``
counts the groups made on this process group:

========================  ================  ==========================================================================
key                       written by        meaning
========================  ================  ==========================================================================
``<round>/<rank>``        that rank         its contribution to meeting number ``round``
``failed``                who gives up      a rank left early or waited in vain; says who and why
``done``                  every rank        a counter: the last rank through removes what is left
========================  ================  ==========================================================================

Having seen all keys of round k proves that every rank has read all of round k-1, so a rank then removes its own key
of round k-1: a channel never holds more than two rounds.

Every call that a member makes takes the next number, also when it fails, and a number whose meeting failed stays
failed for a rank that comes late. So the members' counters agree as long as they make the same calls, and a rank
outside the process group has no counter that could drift.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist

from .errors import PeerError, PeerTimeout, StateError

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class MeetingFailed(StateError):  # noqa: N818
    """Another rank left a meeting early; `rank` and `reason` say who and why."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank
        self.reason = reason


class Channel(Protocol):
    """A sequence of all-gathers among the members of one group."""

    def allgather(self, data: bytes) -> list[bytes]:
        """Collective and blocking: every rank's bytes, by group rank. Lengths may differ."""

    def fail(self, reason: str) -> None:
        """Local: tells ranks that wait in this channel that this rank will not come."""

    def look_for_failure(self) -> None:
        """Local: raises MeetingFailed if a rank said that it will not come."""

    def finish(self) -> None:
        """Local, never raises: this rank is through with the channel; the last one removes its keys."""


class StoreChannel:
    """`Channel` over a c10d store; every wait is bounded by `timeout_s` and names who is missing."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int, timeout_s: float, label: str) -> None:
        self._store = dist.PrefixStore(prefix, store)
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._label = label
        self._round = 0
        self._finished = False
        self.poll: Callable[[], None] | None = None  # looked at while waiting; may raise

    def allgather(self, data: bytes) -> list[bytes]:
        number = self._round
        self._round += 1
        try:
            self._store.set(f"{number}/{self._rank}", data)  # type: ignore[arg-type]  # bytes are served too
            gathered = self._collect(number, data)
            if number:
                self._store.delete_key(f"{number - 1}/{self._rank}")
        except KeyboardInterrupt:
            self.fail("interrupted")
            raise
        except dist.DistError as error:
            raise self._unreachable(error) from error
        return gathered

    def fail(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the store is gone, and with it all who could read this
            self._store.set("failed", json.dumps([self._rank, reason]))

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        try:
            if self._store.add("done", 1) != self._size:
                return
            for key in self._leftover_keys():
                self._store.delete_key(key)
        except (RuntimeError, OSError):
            pass

    def _leftover_keys(self) -> list[str]:
        last = range(max(0, self._round - 2), self._round)
        keys = [f"{number}/{rank}" for number in last for rank in range(self._size)]
        return [key for key in [*keys, "failed"] if self._store.check([key])] + ["done"]

    def _collect(self, number: int, own: bytes) -> list[bytes]:
        gathered: dict[int, bytes] = {self._rank: own}
        missing = [rank for rank in range(self._size) if rank != self._rank]
        deadline = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            for rank in list(missing):
                key = f"{number}/{rank}"
                if self._store.check([key]):
                    gathered[rank] = bytes(self._store.get(key))
                    missing.remove(rank)
            if not missing:
                return [gathered[rank] for rank in range(self._size)]
            self.look_for_failure()
            if time.monotonic() > deadline:
                absent = f"waited {self._timeout_s:g} s in vain for {name_ranks(missing)}"
                self.fail(absent)
                raise PeerTimeout(
                    f"{self._label}: rank {self._rank} {absent}, in host meeting {number}. Every member of the process "
                    "group has to make this call; look at the log of the rank that is missing."
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def look_for_failure(self) -> None:
        if self._store.check(["failed"]):
            rank, reason = json.loads(self._store.get("failed"))
            raise MeetingFailed(int(rank), str(reason))
        if self.poll is not None:
            self.poll()

    def _unreachable(self, error: Exception) -> PeerError:
        return PeerError(
            f"{self._label}: the store of the process group cannot be reached from rank {self._rank}; the process "
            f"that serves it (usually global rank 0) is gone: {error}"
        )


class ObjectChannel:
    """`Channel` over `all_gather_object`, for a process group whose store cannot be had.

    Bounded by the process group's own timeout; a rank that leaves early is seen only by that.
    """

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self._pg = pg
        self.poll: Callable[[], None] | None = None

    def allgather(self, data: bytes) -> list[bytes]:
        gathered: list[Any] = [None] * self._pg.size()
        dist.all_gather_object(gathered, data, group=self._pg)
        return [bytes(item) for item in gathered]

    def fail(self, reason: str) -> None:
        pass

    def look_for_failure(self) -> None:
        pass

    def finish(self) -> None:
        pass


AnyChannel = StoreChannel | ObjectChannel

_groups_made: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def next_group_number(pg: dist.ProcessGroup) -> int:
    """Local: the number of this call among the `init_group` calls on `pg`, from 0; counts the call."""
    number = _groups_made.get(pg, 0)
    _groups_made[pg] = number + 1
    return number


def open_channel(pg: dist.ProcessGroup, number: int, name: str, timeout_s: float, label: str) -> AnyChannel:
    """Local: a channel among the members of `pg`, apart from every other by the group's number and the name."""
    store = store_of(pg)
    if store is None:
        return ObjectChannel(pg)
    return StoreChannel(store, f"fast_ulysses/{number}/{name}", pg.rank(), pg.size(), timeout_s, label)


def store_of(pg: dist.ProcessGroup) -> Any:
    """Local: the c10d store of exactly this process group, or None where it cannot be had."""
    # torch has no public accessor for a group's store on every version that is supported; the private one and the
    # newer method give the same PrefixStore.
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._get_process_group_store(pg)
    except (KeyError, AttributeError):
        pass
    try:
        return pg.get_group_store()
    except (RuntimeError, AttributeError):
        return None


def name_ranks(ranks: list[int]) -> str:
    """'rank 2' or 'ranks 1, 2'."""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(str(rank) for rank in ranks)}"
