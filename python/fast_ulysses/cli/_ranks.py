"""Processes as ranks on this host: started together, watched, and ended together whatever happens.

Who ends whom: the parent kills all ranks when one dies or when it is interrupted; a rank leaves by itself when the
parent is gone, because the pipe that is its standard input then closes. No rank can be left behind waiting for another.

A rank reports to the parent by lines of JSON on a pipe of its own (see :func:`report_to_parent`); what it writes on
standard output or standard error goes to a file, whose end is shown when the rank fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["RankFailedError", "Ranks", "cores", "leave_with_parent", "report_to_parent"]

Event = dict[str, Any]

_POLL_S = 0.1
_GRACE_S = 0.7
_TAIL_LINES = 25


class RankFailedError(Exception):
    """A rank died or fell silent; the text says which and how."""


def cores() -> int:
    """Cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class Ranks:
    """``count`` processes of ``python -m module ARGUMENTS RANK COUNT PIPE``, and what they report.

    A context manager: leaving it ends them all.
    """

    def __init__(self, module: str, arguments: Sequence[str], count: int, log_dir: Path, threads: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[int] = []
        self._pending = [b""] * count
        self._logs = [log_dir / f"{module.rpartition('.')[2].strip('_')}-{rank}of{count}.log" for rank in range(count)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        # All ranks are on this host, so the loopback interface serves, also where there is no other.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        try:
            for rank in range(count):
                self._start(module, [*arguments, str(rank), str(count)], rank, environment)
        except BaseException:
            self.kill()
            raise

    def _start(self, module: str, arguments: Sequence[str], rank: int, environment: dict[str, str]) -> None:
        reader, writer = os.pipe()
        self._pipes.append(reader)
        try:
            with self._logs[rank].open("wb") as log:
                command = [sys.executable, "-m", module, *arguments, str(writer)]
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, pass_fds=[writer]
                )
        finally:
            os.close(writer)
        self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End every rank and wait for it; idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        while self._pipes:
            os.close(self._pipes.pop())

    def events(self, silence_s: float, idle: Callable[[], object] = lambda: None) -> Iterator[tuple[int, Event]]:
        """What the ranks report, as (rank, event), until all have left well.

        ``idle`` is called a few times a second. Raises RankFailedError when a rank dies, or when no rank has said
        anything for ``silence_s``.
        """
        with selectors.DefaultSelector() as selector:
            for rank, pipe in enumerate(self._pipes):
                selector.register(pipe, selectors.EVENT_READ, rank)
            heard = time.monotonic()
            while selector.get_map():
                for key, _ in selector.select(_POLL_S):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                        continue
                    heard = time.monotonic()
                    for event in self._lines(int(key.data), chunk):
                        yield int(key.data), event
                self._raise_if_one_failed()
                if time.monotonic() - heard > silence_s:
                    raise RankFailedError(f"no rank has reported anything for {silence_s:.0f} s")
                idle()
        for process in self._processes:
            process.wait()
        self._raise_if_one_failed()

    def _lines(self, rank: int, chunk: bytes) -> list[Event]:
        *lines, self._pending[rank] = (self._pending[rank] + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def _raise_if_one_failed(self) -> None:
        if not any(process.poll() for process in self._processes):
            return
        # The others notice in their own way, a moment later; the one that a signal ended is the cause.
        time.sleep(_GRACE_S)
        codes = {rank: process.poll() for rank, process in enumerate(self._processes)}
        failed = sorted((code, rank) for rank, code in codes.items() if code)
        code, rank = failed[0]
        others = [str(other) for other in range(len(codes)) if other != rank and codes[other] != 0]
        followed = f"\nended with it: rank {', '.join(others)}" if others else ""
        raise RankFailedError(f"rank {rank} {_how_it_ended(code)}{followed}\n{self._tail(rank)}")

    def _tail(self, rank: int) -> str:
        lines = self._logs[rank].read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        if not lines:
            return "it wrote nothing"
        return "the end of what it wrote:\n" + "\n".join(f"  | {line}" for line in lines)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def leave_with_parent() -> None:
    """In a rank: leave at once when the parent is gone, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(3)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def report_to_parent(pipe: int) -> Callable[[Event], None]:
    """In a rank: the function that sends an event to the parent."""
    stream = os.fdopen(pipe, "w", buffering=1)

    def report(event: Event) -> None:
        stream.write(json.dumps(event) + "\n")

    return report
