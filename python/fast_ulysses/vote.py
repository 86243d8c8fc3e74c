"""How the members of a new group agree on its terms and its transport.

Everything that must be alike on all ranks is exchanged in one meeting and compared by every rank on the same data, so
all go on or all raise, with the same text. The native transport is then tried by all, and the outcomes are voted: if
one rank fails, all fall back for the reason of the first rank that failed by itself.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from . import _C
from .bootstrap import AnyChannel, MeetingFailed, name_ranks
from .errors import InvalidArgument, PeerError, TransportError

TRANSPORTS = ("auto", "shm", "torch")


@dataclass(frozen=True)
class Terms:
    """What one rank brings to the meeting."""

    global_rank: int
    host: str
    transport: str
    heap_bytes: int
    timeout_s: float
    name: str
    generation: int
    version: str
    problem: str | None  # what is wrong with this rank's arguments, told to all

    @staticmethod
    def decode(data: bytes) -> Terms:
        return Terms(**json.loads(data))

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class Outcome:
    """The transport all ranks use, why it is not the native one, and this rank's native group if it is."""

    transport: str
    reason: str | None
    native: _C.Group | None


def this_host() -> str:
    """Kernel boot and host name: two processes with the same text can share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = "unknown-boot"
    return f"{platform.node()}/{boot}"


def meet(channel: AnyChannel, own: Terms, label: str) -> list[Terms]:
    """Collective: every rank's terms, by rank.

    Raises InvalidArgument on all ranks alike if they do not fit together or one rank has a problem.
    """
    try:
        everyone = [Terms.decode(data) for data in channel.allgather(own.encode())]
    except MeetingFailed as failed:
        raise _left(label, failed) from None
    for rank, terms in enumerate(everyone):
        if terms.problem is not None:
            raise InvalidArgument(f"{label}: rank {rank}: {terms.problem}")
    for field in ("transport", "heap_bytes", "timeout_s", "name", "version"):
        values = [getattr(terms, field) for terms in everyone]
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise InvalidArgument(f"{label}: {field} has to be the same on every rank, but is {listed}")
    return everyone


def choose_transport(
    channel: AnyChannel, native_channel: AnyChannel, everyone: Sequence[Terms], rank: int, name: str, label: str
) -> Outcome:
    """Collective: tries the native transport where it is wanted, and votes.

    Raises TransportError on all ranks alike when a named transport cannot serve.
    """
    own = everyone[rank]
    if own.transport == "torch":
        return Outcome("torch", "transport='torch' was asked for", None)
    hosts = sorted({terms.host.split("/")[0] for terms in everyone})
    native: _C.Group | None
    reason: str | None
    if len({terms.host for terms in everyone}) > 1:
        native, reason = None, f"the group spans several hosts ({', '.join(hosts)})"
    else:
        native, reason = _try_native(channel, native_channel, everyone, rank, name, label)
    if native is not None:
        return Outcome(native.transport, None, native)
    if own.transport != "auto":
        raise TransportError(f"{label}: transport {own.transport!r} cannot serve this group: {reason}")
    return Outcome("torch", reason, None)


def _try_native(
    channel: AnyChannel, native_channel: AnyChannel, everyone: Sequence[Terms], rank: int, name: str, label: str
) -> tuple[_C.Group | None, str | None]:
    own = everyone[rank]
    native: _C.Group | None = None
    problem: str | None = None
    own_fault = True
    try:
        _planted_fault("transport-fail", rank)
        native = _C.Group(
            rank, len(everyone), name, native_channel.allgather, own.transport, own.timeout_s, own.heap_bytes
        )
        _planted_fault("transport-fail-late", rank)
    except MeetingFailed as failed:
        problem, own_fault = str(failed), False
    except Exception as error:  # any failure of one rank, whatever its kind, has to reach the vote
        problem = f"{type(error).__name__}: {error}"
        native_channel.fail(problem)
    except BaseException as error:
        channel.fail(f"{type(error).__name__} during init_group")
        native_channel.fail(f"{type(error).__name__} during init_group")
        raise
    try:
        ballot = json.dumps([problem, own_fault]).encode()
        votes: list[tuple[str | None, bool]] = [json.loads(data) for data in channel.allgather(ballot)]
    except MeetingFailed as failed:
        raise _left(label, failed) from None
    failed_ranks = [peer for peer, (text, _) in enumerate(votes) if text is not None]
    if not failed_ranks:
        return native, None
    first = next((peer for peer in failed_ranks if votes[peer][1]), failed_ranks[0])
    reason = f"rank {first} (global rank {everyone[first].global_rank}): {votes[first][0]}"
    if native is not None:
        native.abort(reason)
        native.destroy()
    return None, reason


def _planted_fault(kind: str, rank: int) -> None:
    """FAST_ULYSSES_TEST_FAULT=transport-fail@2 lets group rank 2 fail before, ..-late@2 after the others are ready."""
    fault = f"{kind}@{rank}"
    if os.environ.get("FAST_ULYSSES_TEST_FAULT") == fault:
        raise TransportError(f"planted by FAST_ULYSSES_TEST_FAULT={fault}")


def _left(label: str, failed: MeetingFailed) -> PeerError:
    return PeerError(f"{label}: {name_ranks([failed.rank])} left the call: {failed.reason}")
