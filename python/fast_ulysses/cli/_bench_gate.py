"""A barrier of processes that lets all ranks go within about a microsecond, where they have a core each.

A barrier over sockets lets them go tens of microseconds apart, which a small exchange would then show as its own time.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

__all__ = ["Gate", "make_gate"]

_LINE_BYTES = 64  # one cache line a rank
_LOOK_AT_CLOCK = 4096


def make_gate(path: Path, ranks: int) -> None:
    """In the parent: the file that the ranks share."""
    path.write_bytes(bytes(ranks * _LINE_BYTES))


class Gate:
    """One word a rank in shared memory: how often it has come here. A rank passes when all words say so."""

    def __init__(self, path: Path, rank: int, size: int, timeout_s: float) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size * _LINE_BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._own = rank * _LINE_BYTES // 8
        self._others = [other * _LINE_BYTES // 8 for other in range(size) if other != rank]
        self._timeout_s = timeout_s
        self._passed = 0

    def wait(self) -> None:
        """Collective: returns when all ranks are here. Raises TimeoutError."""
        self._passed += 1
        passed, words = self._passed, self._words
        words[self._own] = passed
        looks, deadline = 0, time.monotonic() + self._timeout_s
        for other in self._others:
            while words[other] < passed:
                os.sched_yield()
                looks += 1
                if looks % _LOOK_AT_CLOCK == 0 and time.monotonic() > deadline:
                    raise TimeoutError(f"a rank has not come to the gate within {self._timeout_s:.0f} s")
