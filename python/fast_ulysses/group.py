"""`init_group`, the `Group` object and the table of handles."""

from __future__ import annotations

import atexit
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from . import _C
from .bootstrap import next_group_number, open_channel
from .errors import FastUlyssesError, InvalidArgument, StateError
from .fallback import TorchWire
from .vote import TRANSPORTS, Outcome, Terms, choose_transport, meet, this_host
from .work import Work

logger = logging.getLogger("fast_ulysses")

_DEFAULT_TIMEOUT_S = 600.0
_LONGEST_TIMEOUT_S = 86400.0
_PLANS_KEPT = 1024
_NAME = re.compile(r"[A-Za-z0-9._:+-]{1,64}")
_HANDLE = re.compile(rf"(?P<name>{_NAME.pattern})/(?P<rank>\d+)of(?P<size>\d+)#(?P<generation>\d+)")
_NATIVE_COUNTERS = (
    "calls",
    "native_bytes",
    "own_bytes",
    "handshakes",
    "inserted_handshakes",
    "growths",
    "capacity_bytes",
)


@dataclass(frozen=True)
class HandleParts:
    """What a handle string says."""

    name: str
    rank: int
    size: int
    generation: int


def parse_handle(handle: str) -> HandleParts:
    """Local: name, rank, size and generation out of ``"<name>/<rank>of<size>#<generation>"``.

    Needs no live group, so that shapes can be inferred in another process or run. Raises InvalidArgument.
    """
    match = _HANDLE.fullmatch(handle)
    if match is None or int(match["rank"]) >= int(match["size"]):
        raise InvalidArgument(
            f"{handle!r} is not a group handle; expected '<name>/<rank>of<size>#<generation>', the text in Group.handle"
        )
    return HandleParts(match["name"], int(match["rank"]), int(match["size"]), int(match["generation"]))


_live: dict[str, Group] = {}
_next_generation: dict[str, int] = {}


def lookup(handle: str) -> Group:
    """Local: the live group of a handle. Raises StateError when it was destroyed or never made in this process."""
    group = _live.get(handle)
    if group is None:
        raise _no_such_group(handle)
    return group


def _no_such_group(handle: str) -> FastUlyssesError:
    try:
        parts = parse_handle(handle)
    except InvalidArgument as error:
        return StateError(f"no such group: {error}")
    if parts.generation < _next_generation.get(parts.name, 0):
        return StateError(f"group {parts.name!r} (handle {handle!r}) was destroyed; make a new one with init_group")
    return StateError(f"group {parts.name!r} (handle {handle!r}) was never made in this process by init_group")


class Group:
    """One sequence-parallel group as its member sees it; made by `init_group`.

    Keep it, or only its `handle` (a string, which may be copied and pickled), and end it with `destroy()` on all ranks.
    As a context manager it is destroyed on a clean exit and aborted on an exception.
    """

    def __init__(
        self,
        handle: str,
        global_ranks: tuple[int, ...],
        outcome: Outcome,
        wire: TorchWire,
        timeout_s: float,
        pg: dist.ProcessGroup,
    ) -> None:
        parts = parse_handle(handle)
        self.handle = handle
        self.name = parts.name
        self.rank = parts.rank
        self.size = parts.size
        self.global_ranks = global_ranks
        self.transport = outcome.transport
        self.fallback_reason = outcome.reason
        self.timeout_s = timeout_s
        self.process_group = pg
        self.native: _C.Group | None = outcome.native  # for the ops of this package
        self.wire = wire  # for the ops of this package
        self.plans: dict[Any, Any] = {}  # for the ops of this package; see keep_plan
        self.windows: dict[int, tuple[int, torch.Tensor]] = {}  # address -> (id, the whole window)
        self._destroyed = False
        self._fallback_calls: dict[str, int] = {}
        self._under_way: list[Work] = []

    def stats(self) -> dict[str, Any]:
        """Local: counters since `init_group`.

        ``calls`` (both paths), ``native_bytes`` (sent to peers natively), ``own_bytes`` (kept on this rank),
        ``handshakes``, ``inserted_handshakes``, ``growths``, ``capacity_bytes``; ``fallback_calls`` and
        ``fallback_reasons`` ({reason: calls}) for what went over torch.distributed.
        """
        counters: dict[str, Any] = dict.fromkeys(_NATIVE_COUNTERS, 0)
        if self.native is not None:
            counters.update(self.native.stats())
        fallback_calls = sum(self._fallback_calls.values())
        counters["calls"] += fallback_calls
        return {**counters, "fallback_calls": fallback_calls, "fallback_reasons": dict(self._fallback_calls)}

    def check(self) -> None:
        """Local: raises what an earlier fault of this group, or of a peer, left.

        A fault that a peer found since the last call is raised once as what it is (PeerError, PeerTimeout,
        CollectiveMismatch), afterwards StateError with the first cause.
        """
        if self._destroyed:
            raise _no_such_group(self.handle)
        self.wire.check()
        if self.native is not None:
            self.native.check()

    def reserve(self, heap_bytes: int) -> None:
        """Collective and blocking: makes the windows at least `heap_bytes` large, so that later calls do not grow."""
        self.check()
        if heap_bytes < 0:
            raise InvalidArgument(f"group {self.name!r}: reserve({heap_bytes}): bytes cannot be negative")
        if self.native is not None:
            self.native.reserve(heap_bytes)

    def trim(self) -> None:
        """Collective and blocking: gives window memory back that no call has needed since."""
        self.check()
        if self.native is not None:
            self.native.trim()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Collective and blocking: an uninitialised tensor in symmetric memory, to be given as `out=`.

        Peers then write into it directly. Ranks may differ in `shape`. It stays valid after `destroy()`. On a
        torch.distributed group it is an ordinary tensor.
        """
        self.check()
        sizes = [int(n) for n in shape]
        if any(n < 0 for n in sizes):
            raise InvalidArgument(f"group {self.name!r}: empty({sizes}): sizes cannot be negative")
        if self.native is None:
            return torch.empty(sizes, dtype=dtype)
        byte_count = math.prod(sizes) * dtype.itemsize
        window = self.native.empty_window(max(byte_count, 1))
        whole = torch.from_dlpack(self.native.window_dlpack(window))
        self.windows[whole.data_ptr()] = (window, whole)
        return whole[:byte_count].view(dtype).view(sizes)

    def all_to_all_single(self, x: torch.Tensor, async_op: bool = False) -> tuple[torch.Tensor, Work]:
        """Sends the p-th of equal parts of dim 0 to rank p. Collective; returns (result, work).

        x: any trailing shape, dim 0 divisible by the group's size. The result has the shape of `x`, is independent of
        the group's memory, and is complete after ``work.wait()``. async_op=True returns at once, any number of such
        calls may be under way, and later calls of the group come after them (on a torch.distributed group the exchange
        is done when the call returns). Eager inference only: an input that needs grad raises InvalidArgument; use
        `fast_ulysses.all_to_all_single`, which is differentiable.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise InvalidArgument(
                "all_to_all_single: the input needs grad, which a Work cannot carry; use "
                "fast_ulysses.all_to_all_single, torch.no_grad() or x.detach()"
            )
        from . import calls, kernels  # they import this module

        parts = kernels.as_parts(x.detach(), self)
        prepared = calls.prepare(self, "all_to_all_single", None, (parts,), lambda: [kernels.PARTS])
        result, pending = calls.begin(self, prepared, parts, x.shape)
        work = Work(pending, parts, result)
        if pending is not None:  # also a Work that nobody keeps must keep its tensors
            self._under_way = [other for other in self._under_way if not other.is_completed()] + [work]
        if not async_op:
            work.wait()
        return result, work

    def abort(self, reason: str) -> None:
        """Local: gives this group up. Peers that wait in it, and later calls on every rank, raise PeerError."""
        if self._destroyed:
            return
        self.wire.abort(reason)
        if self.native is not None:
            self.native.abort(reason)

    def destroy(self) -> None:
        """Collective and blocking; a second call does nothing. After a fault it waits for nobody.

        Every rank has to have made the same calls before: a rank that made one fewer is noticed here.
        """
        if self._destroyed:
            return
        self._destroyed = True
        _live.pop(self.handle, None)
        self.plans.clear()
        self.windows.clear()
        if self.native is not None:
            self.native.destroy()

    def count_fallback(self, reason: str) -> None:
        """Local: counts a call that goes over torch.distributed, and logs a reason of its own once."""
        known = self._fallback_calls.get(reason, 0)
        self._fallback_calls[reason] = known + 1
        if not known and reason != self.fallback_reason:
            logger.info("group %s: a call goes over torch.distributed: %s", self.name, reason)

    def keep_plan(self, key: Any, plan: Any) -> None:
        """Local: remembers what was prepared for a call; the oldest is dropped beyond 1,024."""
        if len(self.plans) >= _PLANS_KEPT:
            self.plans.pop(next(iter(self.plans)))
        self.plans[key] = plan

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort(f"{kind.__name__}: {error}")
        self.destroy()

    def __reduce__(self) -> NoReturn:
        raise StateError(f"group {self.name!r} cannot be copied or pickled; keep its handle {self.handle!r}, a string")

    def __repr__(self) -> str:
        state = "destroyed" if self._destroyed else self.transport
        return f"<fast_ulysses.Group {self.handle} {state}>"


def init_group(
    pg: dist.ProcessGroup | DeviceMesh | None = None,
    *,
    transport: str = "auto",
    heap_bytes: int | None = None,
    timeout: float | timedelta | None = None,
    name: str | None = None,
) -> Group:
    """Makes a group of exactly the members of `pg`. Collective over `pg` alone, and blocking.

    pg: a process group, in any order of ranks, or a one-dimensional DeviceMesh; None means all ranks.
    transport: "auto" takes the native one, or torch.distributed when one rank cannot (Group.fallback_reason says why);
        "shm" is a demand; "torch" takes torch.distributed.
    heap_bytes: capacity of a window to begin with, in bytes; a rank has two. None makes them at the first exchange.
        They grow when needed.
    timeout: seconds that a wait for another rank may last; None takes the process group's own.
    name: appears in errors and in the handle, 1 to 64 of the characters ``A-Z a-z 0-9 . _ : + -``.

    All arguments have to be the same on every member. Raises on all members alike: InvalidArgument for arguments that
    are wrong or differ, TransportError when a named transport cannot serve; and PeerTimeout, which names the ranks
    that did not come.
    """
    process_group = _process_group_of(pg)
    number = next_group_number(process_group)
    timeout_s, timeout_problem = _timeout_seconds(timeout, process_group)
    name_problem = None
    if name is None:
        name = _default_name(process_group)
    elif not _NAME.fullmatch(name):
        name_problem = f"name {name!r} has to be 1 to 64 of the characters A-Z a-z 0-9 . _ : + -"
    own = Terms(
        global_rank=dist.get_rank() if dist.is_initialized() else process_group.rank(),
        host=this_host(),
        transport=transport,
        heap_bytes=heap_bytes or 0,
        timeout_s=timeout_s,
        name=name,
        generation=_next_generation.get(name, 0),
        version=_C.__version__,
        problem=timeout_problem or name_problem or _problem_with(transport, heap_bytes),
    )
    return _make(process_group, number, own)


def _make(pg: dist.ProcessGroup, number: int, own: Terms) -> Group:
    rank, size = pg.rank(), pg.size()
    label = f"init_group of {own.name!r}"
    channel = open_channel(pg, number, "vote", own.timeout_s, label)
    native_channel = open_channel(pg, number, "native", own.timeout_s, f"group {own.name!r}")
    native_channel.poll = channel.look_for_failure
    everyone = meet(channel, own, label)
    outcome = choose_transport(channel, native_channel, everyone, rank, own.name, label)
    native_channel.finish()
    channel.finish()
    generation = max(terms.generation for terms in everyone)
    _next_generation[own.name] = generation + 1
    wire = TorchWire(pg, number, own.timeout_s, f"group {own.name!r}")
    global_ranks = tuple(terms.global_rank for terms in everyone)
    handle = f"{own.name}/{rank}of{size}#{generation}"
    group = Group(handle, global_ranks, outcome, wire, own.timeout_s, pg)
    _live[handle] = group
    why = "" if outcome.reason is None else f" ({outcome.reason})"
    logger.info("group %s: ranks %s, transport %s%s", group.name, list(global_ranks), outcome.transport, why)
    return group


def _process_group_of(pg: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup:
    if pg is None:
        if not dist.is_initialized():
            raise StateError("init_group() without a process group needs torch.distributed.init_process_group first")
        world = dist.group.WORLD
        assert world is not None
        return world
    if isinstance(pg, DeviceMesh):
        if pg.ndim != 1:
            names = f" named {pg.mesh_dim_names}" if pg.mesh_dim_names else ""
            raise InvalidArgument(
                f"init_group: the DeviceMesh has {pg.ndim} dimensions{names}; give one of them, as in mesh['sp']"
            )
        if pg.get_coordinate() is None:
            raise InvalidArgument(f"init_group: global rank {dist.get_rank()} is not in the DeviceMesh")
        return pg.get_group()
    if not isinstance(pg, dist.ProcessGroup):
        outside = pg == dist.GroupMember.NON_GROUP_MEMBER
        what = f"global rank {dist.get_rank()} is not a member of the process group" if outside else f"got {pg!r}"
        raise InvalidArgument(f"init_group: {what}; only members of a ProcessGroup or 1-D DeviceMesh may call this")
    return pg


def _default_name(pg: dist.ProcessGroup) -> str:
    try:
        ranks = dist.get_process_group_ranks(pg)
    except (KeyError, ValueError):  # a process group that torch.distributed does not know, made by hand
        ranks = []
    name = f"sp{'-'.join(str(rank) for rank in ranks)}"
    return name if ranks and len(name) <= 64 else f"sp{pg.size()}"


def _timeout_seconds(timeout: float | timedelta | None, pg: dist.ProcessGroup) -> tuple[float, str | None]:
    """The timeout in seconds and what is wrong with it, if anything is."""
    if timeout is None:
        return min(_timeout_of(pg), _LONGEST_TIMEOUT_S), None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if 0 < seconds <= _LONGEST_TIMEOUT_S:
        return seconds, None
    return _timeout_of(pg), f"timeout {seconds:g} s has to be above 0 and at most {_LONGEST_TIMEOUT_S:g} s (a day)"


def _timeout_of(pg: dist.ProcessGroup) -> float:
    for device in pg._device_types:
        try:
            return float(pg._get_backend(device).options._timeout.total_seconds())
        except (AttributeError, RuntimeError):
            continue  # a backend without options, MPI for one
    return _DEFAULT_TIMEOUT_S


def _problem_with(transport: str, heap_bytes: int | None) -> str | None:
    if transport not in TRANSPORTS:
        return f"transport {transport!r} is unknown; there are {', '.join(TRANSPORTS)}"
    if heap_bytes is not None and heap_bytes < 0:
        return f"heap_bytes {heap_bytes} cannot be negative"
    return None


def _to_log(level: int, text: str) -> None:
    logger.log(level, "%s", text)


def _at_exit() -> None:
    """Says which groups were never destroyed; nothing collective, nothing raised, no call into the core afterwards."""
    _C.set_log_sink(None)
    for group in _live.values():
        logger.warning("group %s was never destroyed; call destroy() on its Group before exit", group.handle)


_C.set_log_sink(_to_log)
atexit.register(_at_exit)
