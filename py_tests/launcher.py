"""Ranks as processes of their own, for tests: started, fed a function, watched by a deadline, killed when one fails.

`Ranks` is one set of processes. The fixture `launch` starts one for a single function; the fixture `pool` keeps one
for many functions, since importing torch takes seconds a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("worker.py")
_GRACE_S = 5.0


class RankFailure(AssertionError):  # noqa: N818
    """A rank raised, died or let the deadline pass; the text holds the first failing rank's traceback."""


@dataclass
class Report:
    """What became of one rank."""

    rank: int
    value: Any = None
    error: str | None = None  # its traceback
    exit_code: int | None = None
    seconds: float = 0.0  # from the start of the processes to the report
    log: str = ""  # standard output and error

    def __str__(self) -> str:
        state = self.error or f"exit code {self.exit_code}, value {self.value!r}"
        return f"--- rank {self.rank}: {state}\n{self.log[-4000:]}"


class Ranks:
    """`count` worker processes with a common rendezvous.

    store: "file" or "tcp" (served by rank 0). prefix: a command that every process runs under. subgroups: make the
    process groups of the first 1, 2, .. ranks at once, as the pool needs them.
    """

    def __init__(
        self,
        count: int,
        *,
        store: str = "file",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        subgroups: bool = False,
    ) -> None:
        self.count = count
        self._directory = tempfile.TemporaryDirectory(prefix="fu_ranks_")
        self._started = time.monotonic()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        self._spoken: list[list[Any]] = [[] for _ in range(count)]
        for rank in range(count):
            self._start(rank, store, env or {}, prefix, subgroups)
        if store == "tcp":
            port = self._next_message(0, "port", 60.0)
            for connection in self.connections[1:]:
                connection.send(port)

    def _start(self, rank: int, store: str, env: Mapping[str, str], prefix: Sequence[str], subgroups: bool) -> None:
        ours, theirs = Pipe()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **env}
        arguments = [str(theirs.fileno()), str(rank), str(self.count), store, self._directory.name, str(int(subgroups))]
        command = [*prefix, sys.executable, str(_WORKER), *arguments]
        with open(self._log_path(rank), "wb") as log:
            process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdout=log, stderr=subprocess.STDOUT
            )
        theirs.close()
        self.processes.append(process)
        self.connections.append(ours)

    def submit(self, function: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None) -> None:
        """Has `function(context, *args)` run on the ranks given, or on all. The function has to be importable."""
        for rank in range(self.count) if ranks is None else ranks:
            self.connections[rank].send((function.__module__, function.__qualname__, args))

    def said(self, rank: int, what: Any, timeout: float = 60.0) -> None:
        """Waits until a rank calls `context.say(what)`."""
        if what in self._spoken[rank]:
            self._spoken[rank].remove(what)
            return
        while (heard := self._next_message(rank, "say", timeout)) != what:
            self._spoken[rank].append(heard)

    def tell(self, rank: int, what: Any) -> None:
        """Answers a rank's `context.listen()`."""
        self.connections[rank].send(what)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def pid(self, rank: int) -> int:
        """Of the Python process itself, also where it runs under a prefix."""
        return int(Path(self._directory.name, f"pid{rank}").read_text())

    def gather(self, timeout: float, ranks: Sequence[int] | None = None, check: bool = True) -> list[Report]:
        """The ranks' reports, in the order of the ranks.

        check: the first failure ends all ranks and raises RankFailure; else failures are reported like results.
        """
        asked = list(range(self.count)) if ranks is None else list(ranks)
        reports: dict[int, Report] = {}
        deadline = time.monotonic() + timeout
        while len(reports) < len(asked):
            pending = {self.connections[rank]: rank for rank in asked if rank not in reports}
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._too_late(sorted(pending.values()), timeout)
            for connection in ready:
                assert isinstance(connection, Connection)
                report = self._receive(pending[connection])
                if report is None:
                    continue
                reports[report.rank] = report
                if check and (report.error or report.exit_code):
                    time.sleep(0.2)  # its last words may still be on their way to the log
                    report.log = self.log(report.rank)
                    self.kill()
                    raise RankFailure(f"rank {report.rank} failed first\n{report}")
        return [reports[rank] for rank in asked]

    def finish(self, timeout: float = 30.0, ranks: Sequence[int] | None = None) -> list[int]:
        """Lets the processes end by themselves; their exit codes."""
        asked = list(range(self.count)) if ranks is None else list(ranks)
        deadline = time.monotonic() + timeout
        for rank in asked:
            with contextlib.suppress(OSError):
                self.connections[rank].send(None)
        codes = []
        for rank in asked:
            try:
                codes.append(self.processes[rank].wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise self._too_late([rank], timeout) from None
        return codes

    def log(self, rank: int) -> str:
        """Standard output and error so far."""
        return self._log_path(rank).read_text(errors="replace")

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait(_GRACE_S)
        for connection in self.connections:
            connection.close()

    def close(self) -> None:
        self.kill()
        self._directory.cleanup()

    def _too_late(self, ranks: Sequence[int], timeout: float) -> RankFailure:
        for rank in ranks:
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid(rank), signal.SIGUSR1)  # faulthandler writes the stacks to the log
        time.sleep(0.5)
        text = "".join(str(Report(rank, log=self.log(rank))) for rank in ranks)
        self.kill()
        return RankFailure(f"ranks {list(ranks)} were not done within {timeout:g} s\n{text}")

    def _receive(self, rank: int) -> Report | None:
        try:
            kind, payload = self.connections[rank].recv()
        except (EOFError, OSError):
            code = self.processes[rank].wait(_GRACE_S)
            died = f"the process ended by itself with exit code {code}" if code else None
            return Report(rank, error=died, exit_code=code, seconds=self._elapsed(), log=self.log(rank))
        if kind == "say":
            self._spoken[rank].append(payload)
            return None
        value, error = (payload, None) if kind == "value" else (None, payload)
        return Report(rank, value=value, error=error, seconds=self._elapsed(), log=self.log(rank))

    def _next_message(self, rank: int, kind: str, timeout: float) -> Any:
        if not self.connections[rank].poll(timeout):
            raise RankFailure(f"rank {rank} did not say {kind!r} within {timeout:g} s\n{self.log(rank)}")
        try:
            got, payload = self.connections[rank].recv()
        except EOFError:
            raise RankFailure(f"rank {rank} ended before it said {kind!r}\n{self.log(rank)}") from None
        if got != kind:
            raise RankFailure(f"rank {rank} sent {got!r} in place of {kind!r}: {payload}\n{self.log(rank)}")
        return payload

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _log_path(self, rank: int) -> Path:
        return Path(self._directory.name, f"log{rank}")


class Pool:
    """Workers that run many functions on the first ranks of a world of eight, over process groups made ahead."""

    SIZE = 8

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def run(self, function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 60.0) -> list[Any]:
        """`function(context, *args)` on ranks 0 .. ranks-1; their results. A failure takes the workers down."""
        used = range(ranks)
        try:
            if self._ranks is None:
                self._ranks = Ranks(self.SIZE, subgroups=True)
                self._ranks.gather(120.0)
            self._ranks.submit(run_on_subgroup, ranks, function.__module__, function.__qualname__, args, ranks=used)
            return [report.value for report in self._ranks.gather(timeout, used)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


def run_on_subgroup(context: Any, ranks: int, module: str, name: str, args: tuple[Any, ...]) -> Any:
    return context.find(module, name)(context.for_subgroup(ranks), *args)
