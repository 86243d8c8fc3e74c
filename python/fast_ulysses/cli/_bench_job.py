"""What the benchmark measures: the cases, their bytes, the memory that they need, and the job handed to the ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .._C import balanced_split

__all__ = ["BACKENDS", "DIRECTIONS", "DTYPES", "NATIVE", "Case", "Job", "limit_vs_copy", "memory_bytes"]

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8": 1, "uint8": 1}
"""Bytes of an element."""

DIRECTIONS = ("scatter", "gather")
"""``scatter``: ``[B, s, H, D] -> [B, N, h, D]``, into attention; ``gather``: the way back."""

BACKENDS = {
    "torch": "permute, all_to_all_single, permute",
    "packed_fused": "one-pass pack, all_to_all_single, one-pass unpack; own rows moved once",
    "fast_ulysses": "a2a(x, group): a new result, the caller's own",
    "fast_ulysses_into": "a2a(..., out=) of an ordinary tensor that is used again",
    "fast_ulysses_out": "a2a(..., out=) of a tensor of group.empty, which the peers write directly",
    "copy": "one memcpy of as many bytes on every rank, into memory that was touched before: the limit",
}
NATIVE = ("fast_ulysses", "fast_ulysses_into", "fast_ulysses_out")
FAULTS = ("dead-rank",)
"""What ``--plant-fault`` can break; a wrong bit is planted by ``FAST_ULYSSES_TEST_FAULT=flip-bit``."""
DEFAULT_BACKENDS = ("torch", "packed_fused", "fast_ulysses", "fast_ulysses_out", "copy")

_PROCESS_BYTES = 350 << 20  # a Python process with torch


@dataclass(frozen=True)
class Case:
    """One exchange to measure, on whatever number of ranks."""

    shape: str
    batch: int
    tokens: int
    heads: int
    width: int
    dtype: str
    direction: str

    def token_splits(self, ranks: int) -> list[int]:
        return balanced_split(self.tokens, ranks)

    def head_splits(self, ranks: int) -> list[int]:
        return balanced_split(self.heads, ranks)

    def input_bytes(self, rank: int, ranks: int) -> int:
        inward = self.direction == "scatter"
        return self._shard_bytes(rank, ranks) if inward else self._slice_bytes(rank, ranks)

    def output_bytes(self, rank: int, ranks: int) -> int:
        inward = self.direction == "scatter"
        return self._slice_bytes(rank, ranks) if inward else self._shard_bytes(rank, ranks)

    def sent_bytes(self, rank: int, ranks: int) -> int:
        """What ``rank`` has to send to its peers, from the shape alone."""
        tokens, heads = self.token_splits(ranks)[rank], self.head_splits(ranks)[rank]
        others = tokens * (self.heads - heads) if self.direction == "scatter" else (self.tokens - tokens) * heads
        return self.batch * others * self.width * DTYPES[self.dtype]

    def _shard_bytes(self, rank: int, ranks: int) -> int:
        return self.batch * self.token_splits(ranks)[rank] * self.heads * self.width * DTYPES[self.dtype]

    def _slice_bytes(self, rank: int, ranks: int) -> int:
        return self.batch * self.tokens * self.head_splits(ranks)[rank] * self.width * DTYPES[self.dtype]


def memory_bytes(case: Case, ranks: int, backends: list[str]) -> int:
    """What all ranks need together at the worst moment; an estimate from above."""
    largest = max(max(case.input_bytes(rank, ranks), case.output_bytes(rank, ranks)) for rank in range(ranks))
    kept = 2 + sum(backend in ("copy", "fast_ulysses_into", "fast_ulysses_out") for backend in backends)
    if any(backend in NATIVE for backend in backends):
        kept += 3  # two windows, and a result that is kept for the next call
    passing = 3 if "torch" in backends or "packed_fused" in backends else 1
    return ranks * (_PROCESS_BYTES + (kept + passing) * largest)


def limit_vs_copy(backend: str, ranks: int) -> float | None:
    """By how much a backend must exceed one memcpy of its result, counting the bytes that it copies; None: not ours.

    With windows: (P-1)/P pushed, 1/P moved locally, (P-1)/P placed. Straight into the result: every byte once.
    """
    if backend in ("fast_ulysses", "fast_ulysses_into"):
        return (2 * ranks - 1) / ranks
    return 1.0 if backend in ("fast_ulysses_out", "copy") else None


@dataclass(frozen=True)
class Job:
    """Everything that a rank has to know; travels as a JSON file."""

    cases: list[Case]
    backends: list[str]
    warmup: int
    iterations: int
    directory: str
    threads: int
    timeout_s: float
    profile: bool
    fault: str | None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Job:
        fields = json.loads(path.read_text())
        fields["cases"] = [Case(**case) for case in fields["cases"]]
        return Job(**fields)

    @property
    def gate(self) -> Path:
        """The file by which the ranks start each measurement together."""
        return Path(self.directory) / "gate"
