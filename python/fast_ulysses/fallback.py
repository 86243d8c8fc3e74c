"""The exchanges over torch.distributed: what a group does that has no native transport.

Bytes are moved (`view(torch.uint8)`), because gloo refuses several dtypes; the result equals the native path's bit for
bit. On CPU tensors every exchange is preceded by a small all-gather of what each rank is about to call, so that ranks
that disagree all raise `CollectiveMismatch` and nothing is delivered. On CUDA tensors that check would make the host
wait for the device, so it is left out there.

After a fault (a peer that died or never came, an interrupt) collectives may still be in flight on the process group:
it should then be destroyed together with the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from .bootstrap import name_ranks, store_of
from .cuts import Cut
from .errors import CollectiveMismatch, FastUlyssesError, PeerError, PeerTimeout, StateError

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ALIGNMENT_BYTES = 8
_RECORD_BYTES = 1024
_DIGEST_BYTES = 16
_POLL_S = 0.1
_REPORT_S = 2.0


@dataclass(frozen=True)
class Request:
    """One tensor of an exchange with every rank's splits resolved; dims are non-negative."""

    scatter_dim: int
    gather_dim: int
    scatter_splits: tuple[int, ...]
    scatter_starts: tuple[int, ...]
    gather_splits: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def resolve(
        x: torch.Tensor, group_size: int, scatter_dim: int, gather_dim: int, scatter: Cut, gather: Cut
    ) -> Request:
        """Local; the arguments were checked by the planner before."""
        scatter_dim %= x.dim()
        gather_dim %= x.dim()
        even_scatter = (x.size(scatter_dim) // group_size,) * group_size
        even_gather = (x.size(gather_dim),) * group_size
        lengths = even_scatter if scatter.lengths is None else scatter.lengths
        return Request(
            scatter_dim,
            gather_dim,
            lengths,
            tuple(itertools.accumulate(lengths[:-1], initial=0)) if scatter.starts is None else scatter.starts,
            even_gather if gather.lengths is None else gather.lengths,
            tuple(x.shape),
            x.dtype,
        )

    def block_sizes(self, sender: int, receiver: int) -> list[int]:
        """Sizes of what `sender` holds and `receiver` needs."""
        sizes = list(self.sizes)
        sizes[self.scatter_dim] = self.scatter_splits[receiver]
        sizes[self.gather_dim] = self.gather_splits[sender]
        return sizes

    def block_bytes(self, sender: int, receiver: int) -> int:
        return math.prod(self.block_sizes(sender, receiver)) * self.dtype.itemsize

    def source(self, x: torch.Tensor, receiver: int) -> torch.Tensor:
        """The part of this rank's input that `receiver` needs, as a view."""
        return x.narrow(self.scatter_dim, self.scatter_starts[receiver], self.scatter_splits[receiver])

    def place(self, out: torch.Tensor, sender: int) -> torch.Tensor:
        """Where this rank's result holds what `sender` sends, as a view."""
        start = sum(self.gather_splits[:sender])
        return out.narrow(self.gather_dim, start, self.gather_splits[sender])


def make_record(text: str) -> bytes:
    """What a rank tells the others before a call: a digest, which has to be the same on all, and the text itself."""
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return (digest + text.encode())[:_RECORD_BYTES].ljust(_RECORD_BYTES, b"\0")


def carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory seen as integers of the same size: copies then move bits and nothing else."""
    return tensor.view(_CARRIERS[tensor.dtype.itemsize])


class FaultBoard:
    """Words in the process group's store by which members learn of each other's failures; read only while waiting."""

    def __init__(self, pg: dist.ProcessGroup, number: int) -> None:
        store = store_of(pg)
        self._rank, self._size = pg.rank(), pg.size()
        self._store = None if store is None else dist.PrefixStore(f"fast_ulysses/{number}/faults", store)

    def abort(self, reason: str) -> None:
        self._attempt(lambda store: store.set("abort", f"{self._rank} {reason}"))

    def aborted(self) -> tuple[int, str] | None:
        """(rank, reason) of the member that aborted the group, if one did."""
        text = self._attempt(lambda store: store.get("abort").decode() if store.check(["abort"]) else None)
        if not text:
            return None
        rank, _, reason = text.partition(" ")
        return int(rank), reason

    def report(self) -> list[int]:
        """Says that this rank saw a failure; returns the other ranks that said nothing within two seconds."""
        self._attempt(lambda store: store.set(f"saw/{self._rank}", "1"))
        silent = [rank for rank in range(self._size) if rank != self._rank]
        deadline = time.monotonic() + _REPORT_S
        while silent and time.monotonic() < deadline:
            time.sleep(0.05)
            silent = [r for r in silent if not self._attempt(lambda store, key=f"saw/{r}": store.check([key]))]
        return silent

    def _attempt(self, action: Callable[..., Any]) -> Any:
        if self._store is None:
            return None
        try:
            return action(self._store)
        except (RuntimeError, OSError):
            return None  # the store died with the process that served it


class TorchWire:
    """Exchanges of one group over its process group; every host wait is bounded and ends on Ctrl-C."""

    def __init__(self, pg: dist.ProcessGroup, number: int, timeout_s: float, label: str) -> None:
        self._pg = pg
        self._rank, self._size = pg.rank(), pg.size()
        self._timeout_s = timeout_s
        self._label = label
        self._calls = 0
        self._board = FaultBoard(pg, number)
        self.fault: FastUlyssesError | None = None

    def exchange(
        self,
        text: str,
        record: bytes,
        requests: Sequence[Request],
        sources: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Collective: moves the blocks of all `requests` in one all-to-all. Blocking for CPU tensors."""
        with self._call(text) as what:
            sources = [carrier(x) for x in sources]
            results = [carrier(out) for out in results]
            if self._size > 1:
                device = self._wire_device(sources[0].device)
                self._agree(record, what, device)
                for peer, chunk in enumerate(self._swap_packed(what, requests, sources, device)):
                    if peer != self._rank:
                        _unpack(chunk, [r.place(out, peer) for r, out in zip(requests, results, strict=True)])
            for request, x, out in zip(requests, sources, results, strict=True):
                request.place(out, self._rank).copy_(request.source(x, self._rank))

    def gather(self, text: str, x: torch.Tensor, dim: int) -> list[torch.Tensor]:
        """Collective and blocking: every rank's `x`, which may differ in `dim` only, by rank.

        text: names the call and what has to agree, so not the size of `dim`.
        """
        with self._call(text) as what:
            device = self._wire_device(x.device)
            self._agree(make_record(text), what, device, always=True)
            lengths = torch.empty(self._size, dtype=torch.int64, device=device)
            own_length = torch.tensor([x.size(dim)], dtype=torch.int64, device=device)
            self._wait(_all_gather(lengths, own_length, self._pg), what, device)
            parts = [int(n) for n in lengths.tolist()]
            moved = carrier(x).movedim(dim, 0)
            padded = moved.new_empty((max(parts), *moved.shape[1:]), device=device)
            padded[: x.size(dim)].copy_(moved)
            gathered = padded.new_empty((self._size, *padded.shape))
            if padded.numel():
                work = _all_gather(gathered.view(-1).view(torch.uint8), padded.view(-1).view(torch.uint8), self._pg)
                self._wait(work, what, device)
        return [gathered[rank, :n].movedim(0, dim).to(x.device).view(x.dtype) for rank, n in enumerate(parts)]

    def check(self) -> None:
        """Local: raises StateError with the first cause after a fault."""
        if self.fault is not None:
            raise StateError(
                f"{self._label} rank {self._rank}: the group is out of use since an earlier fault; destroy() it and "
                f"make a new one. The fault: {self.fault}"
            )

    def abort(self, reason: str) -> None:
        """Local: peers that wait in this group raise within moments."""
        self._board.abort(reason)
        if self.fault is None:
            self.fault = PeerError(f"{self._label}: this rank, {self._rank}, aborted the group: {reason}")

    @contextlib.contextmanager
    def _call(self, text: str) -> Iterator[str]:
        """Names the call for messages; whatever leaves it as an exception is a fault that the peers hear of."""
        self.check()
        what = f"call {self._calls} over torch.distributed, {text}"
        self._calls += 1
        try:
            yield what
        except BaseException as error:
            if self.fault is None:  # not found by the waits: an interrupt, for one
                reason = f"{type(error).__name__} {error}".strip()
                self._board.abort(f"{reason} in {what}")
                self.fault = PeerError(f"{self._label}: {reason} on this rank, {self._rank}, in {what}")
            raise

    def _swap_packed(
        self, what: str, requests: Sequence[Request], sources: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        me = self._rank
        send = [sum(_aligned(r.block_bytes(me, to)) for r in requests) if to != me else 0 for to in range(self._size)]
        take = [sum(_aligned(r.block_bytes(of, me)) for r in requests) if of != me else 0 for of in range(self._size)]
        outbox = torch.empty(sum(send), dtype=torch.uint8, device=device)
        inbox = torch.empty(sum(take), dtype=torch.uint8, device=device)
        for peer, chunk in enumerate(outbox.split(send)):
            if peer != me:
                _pack(chunk, [request.source(x, peer) for request, x in zip(requests, sources, strict=True)])
        work = dist.all_to_all_single(inbox, outbox, take, send, group=self._pg, async_op=True)
        self._wait(work, what, device)
        return list(inbox.split(take))

    def _agree(self, record: bytes, what: str, device: torch.device, always: bool = False) -> None:
        if device.type != "cpu" and not always:
            return
        own = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
        everyone = torch.empty(self._size * _RECORD_BYTES, dtype=torch.uint8, device=device)
        self._wait(_all_gather(everyone, own, self._pg), what, device)
        records = everyone.view(self._size, _RECORD_BYTES)
        if bool((records[:, :_DIGEST_BYTES] != own[:_DIGEST_BYTES]).any()):
            texts = [bytes(r[_DIGEST_BYTES:]).rstrip(b"\0").decode(errors="replace") for r in records.tolist()]
            calls = "; ".join(f"rank {rank} is in {text}" for rank, text in enumerate(texts))
            self.fault = CollectiveMismatch(f"{self._label}: the ranks make different calls: {calls}")
            raise self.fault

    def _wire_device(self, device: torch.device) -> torch.device:
        """Where the bytes have to lie for this process group: beside the tensor if its backend can, else staged."""
        served = {d.type for d in self._pg._device_types}
        if device.type == "cpu":
            return device if "cpu" in served else torch.device("cuda", torch.cuda.current_device())
        if device.type in served and self._pg._get_backend(device).name() != "gloo":
            return device
        return torch.device("cpu")

    def _wait(self, work: Any, what: str, device: torch.device) -> None:
        if device.type != "cpu":
            work.wait()
            return
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                work.wait(timedelta(seconds=_POLL_S))
                return
            except RuntimeError:
                if work.is_completed():
                    # The error may be this poll's own time-out, with the work done a moment later: ask for its outcome.
                    try:
                        work.wait()
                        return
                    except RuntimeError as failure:
                        raise self._peer_failed(what, failure) from failure
            self._look_for_abort(what)
            if time.monotonic() > deadline:
                raise self._timed_out(what)

    def _look_for_abort(self, what: str) -> None:
        aborted = self._board.aborted()
        if aborted is not None:
            self.fault = PeerError(f"{self._label}: rank {aborted[0]} aborted the group ({aborted[1]}), seen in {what}")
            raise self.fault

    def _timed_out(self, what: str) -> FastUlyssesError:
        silent = self._board.report()
        absent = name_ranks(silent) if silent else "nobody: all wait, in different calls"
        self.fault = PeerTimeout(
            f"{self._label}, rank {self._rank} of {self._size}: {what}: "
            f"not arrived after {self._timeout_s:g} s: {absent}"
        )
        return self.fault

    def _peer_failed(self, what: str, error: Exception) -> FastUlyssesError:
        aborted = self._board.aborted()
        if aborted is not None:
            cause = f"rank {aborted[0]} aborted the group ({aborted[1]})"
        else:
            silent = self._board.report()
            cause = f"no word from {name_ranks(silent)} (dead, or not at this call)" if silent else "a peer failed"
        self.fault = PeerError(f"{self._label}: {cause}; rank {self._rank} is in {what}: {error}")
        return self.fault


def _all_gather(everyone: torch.Tensor, own: torch.Tensor, pg: dist.ProcessGroup) -> Any:
    # Newer versions have it under another name and warn about the old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(everyone, own, group=pg, async_op=True)


def _aligned(byte_count: int) -> int:
    return -(-byte_count // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _pack(chunk: torch.Tensor, blocks: Sequence[torch.Tensor]) -> None:
    for part, block in zip(_parts(chunk, [b.numel() * b.itemsize for b in blocks]), blocks, strict=True):
        part.view(block.dtype).view(block.shape).copy_(block)


def _unpack(chunk: torch.Tensor, places: Sequence[torch.Tensor]) -> None:
    for part, place in zip(_parts(chunk, [p.numel() * p.itemsize for p in places]), places, strict=True):
        place.copy_(part.view(place.dtype).view(place.shape))


def _parts(chunk: torch.Tensor, byte_counts: Sequence[int]) -> list[torch.Tensor]:
    starts = accumulate((_aligned(n) for n in byte_counts), initial=0)
    return [chunk[start : start + n] for start, n in zip(starts, byte_counts, strict=False)]
