"""Measure an exchange side by side with what it replaces, and with the memcpy that bounds it.

  fast-ulysses bench exchange --ranks 2,4 --shape wan-480p,flux-1024 --json result.json

Every iteration runs each backend once, in rotating order; the ranks start each call together, and the time of an
iteration is that of the slowest rank. After every call, warm-up included, every rank compares every bit of its result
with what the positions in the input say it has to be. The exit code is 0 when all were right, 1 when one was not or a
rank failed, 2 when the run was refused before it began.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

from ..errors import InvalidArgument
from ..shapes import NAMED_SHAPES, Shape, parse_shapes
from ._bench_gate import make_gate
from ._bench_job import BACKENDS, DEFAULT_BACKENDS, DIRECTIONS, DTYPES, FAULTS, NATIVE, Case, Job, memory_bytes
from ._bench_machine import available_bytes, machine
from ._bench_plot import draw
from ._bench_report import Events, Row, bytes_text, host_text, make_rows, profile_text, table
from ._ranks import RankFailedError, Ranks, cores

NAME = "bench"
HELP = "time the exchange against torch.distributed and a plain copy, results compared bit for bit"

_MOST_RANKS = 64
_LEAST_ITERATIONS = 10
_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    exchange = what.add_parser("exchange", help="one exchange of one tensor", description=_describe())
    exchange.formatter_class = argparse.RawDescriptionHelpFormatter
    add = exchange.add_argument
    add("--device", choices=("cpu",), default="cpu", help="where the tensors lie")
    add("--ranks", type=_listed(_rank_count), default=[2], metavar="P[,P]", help="processes (default 2)")
    add("--shape", type=_shapes, default="wan-480p", metavar="S[,S]", help="names, or B,N,H,D (default wan-480p)")
    add("--dtype", choices=tuple(DTYPES), default="bf16")
    add("--direction", type=_listed(_one_of(DIRECTIONS)), default=list(DIRECTIONS), metavar="D[,D]")
    add("--backends", type=_listed(_one_of(BACKENDS)), default=list(DEFAULT_BACKENDS), metavar="B[,B]")
    add("--warmup", type=_at_least(1), default=3, help="untimed iterations (default 3)")
    add("--iters", type=_at_least(_LEAST_ITERATIONS), default=20, help="timed ones, at least 10 (default 20)")
    add("--json", type=Path, metavar="FILE", help="one JSON object a line; a plot beside it, FILE with .png")
    add("--profile", action="store_true", help="also say where the time goes; adds fast_ulysses_into")
    add("--plant-fault", choices=FAULTS, default=None, help="break something, to see that the run then fails")
    add("--timeout", type=_at_least(1), default=300, metavar="S", help="longest wait for a rank (default 300 s)")


def _describe() -> str:
    shapes = "\n".join(
        f"  {shape.name:<17}{shape.tokens:>8,} tokens, {shape.heads} x {shape.width}; {shape.note}"
        for shape in NAMED_SHAPES.values()
    )
    backends = "\n".join(f"  {name:<18}{text}" for name, text in BACKENDS.items())
    return f"{__doc__}\nbackends:\n{backends}\n\nshapes:\n{shapes}\n"


def run(args: argparse.Namespace) -> int:
    backends = [name for name in BACKENDS if name in args.backends or (args.profile and name in NATIVE)]
    cases = [_case(shape, args.dtype, direction) for shape in args.shape for direction in args.direction]
    refusal = _refusal(cases, args.ranks, backends)
    if refusal:
        print(refusal, file=sys.stderr)
        return 2
    found = machine()
    print(f"{found['cpu']}, {found['cores']} cores, torch {found['torch']}, commit {found['commit'] or 'unknown'}")
    if max(args.ranks) > found["cores"]:
        print(f"(more ranks than cores: the ranks of {max(args.ranks)} share them, so their times say little)")
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="fast-ulysses-bench-") as directory:
        job = Job(
            cases, backends, args.warmup, args.iters, directory, 1, float(args.timeout), args.profile, args.plant_fault
        )
        try:
            if args.json is None:
                rows, host = _measure_all(job, args.ranks, found, progress, None)
            else:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                with args.json.open("w") as sink:
                    rows, host = _measure_all(job, args.ranks, found, progress, sink)
        except RankFailedError as failure:
            progress.close()
            print(f"\nFAILED: {failure}", file=sys.stderr)
            return 1
        finally:
            progress.close()
    return _finish(args, rows, host, progress.elapsed_s)


def _finish(args: argparse.Namespace, rows: list[Row], host: dict[str, Any] | None, elapsed_s: float) -> int:
    print(f"\n{table(rows)}\n")
    if host is not None:
        print(f"{host_text(host)}\n")
    if args.profile:
        print(f"{profile_text(rows)}\n")
    if args.json is not None:
        print(f"rows: {args.json.resolve()}")
        _draw(rows, args.json.with_suffix(".png"))
    wrong = [row for row in rows if not row["exact"]]
    for row in wrong:
        print(f"WRONG BITS: {row['shape']}, {row['direction']}, {row['ranks']} ranks, {row['backend']}")
    verdict = "FAILED" if wrong else f"all {len(rows)} results exact on every rank"
    print(f"{verdict} after {elapsed_s:.0f} s")
    return 1 if wrong else 0


def _draw(rows: list[Row], path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed")
        return
    draw(rows, path)
    print(f"plot: {path.resolve()}")


def _measure_all(
    job: Job, rank_counts: Sequence[int], found: Row, progress: Progress, sink: IO[str] | None
) -> tuple[list[Row], dict[str, Any] | None]:
    path = Path(job.directory) / "job.json"
    rows: list[Row] = []
    host: dict[str, Any] | None = None
    job.save(path)
    if any(name in NATIVE for name in job.backends):
        progress.say("host time of a call, one rank")
        with Ranks("fast_ulysses.cli._bench_rank", ["host", str(path)], 1, path.parent, 1) as processes:
            for _, event in processes.events(job.timeout_s, progress.tick):
                host = event
    for ranks in rank_counts:
        threads = max(1, cores() // ranks)
        replace(job, threads=threads).save(path)
        make_gate(job.gate, ranks)
        reports: dict[int, dict[str, Events]] = {}
        with Ranks("fast_ulysses.cli._bench_rank", ["exchange", str(path)], ranks, path.parent, threads) as processes:
            for rank, event in processes.events(job.timeout_s, progress.tick):
                number = event["case"]
                if event["kind"] == "progress":
                    if rank == 0:
                        progress.iteration(job, job.cases[number], ranks, event["done"])
                    continue
                reports.setdefault(number, {}).setdefault(event["backend"], {})[rank] = event
                if _complete(reports[number], job, ranks):
                    new = make_rows(job, job.cases[number], ranks, reports.pop(number), host, found)
                    rows += new
                    _write(new, sink)
    return rows, host


def _complete(by_backend: dict[str, Events], job: Job, ranks: int) -> bool:
    return len(by_backend) == len(job.backends) and all(len(by_rank) == ranks for by_rank in by_backend.values())


def _write(rows: Sequence[Row], sink: IO[str] | None) -> None:
    if sink is not None:
        sink.writelines(json.dumps(row) + "\n" for row in rows)
        sink.flush()


def _refusal(cases: Sequence[Case], rank_counts: Sequence[int], backends: list[str]) -> str | None:
    """Why the run is not begun, and what would fit."""
    free = available_bytes()
    for ranks in rank_counts:
        for case in cases:
            need = memory_bytes(case, ranks, backends)
            if need > free:
                return (
                    f"{case.shape} {case.dtype} on {ranks} ranks needs about {bytes_text(need)} of memory, but "
                    f"{bytes_text(free)} are available; nothing was started. {_advice(case, ranks, backends, free)}"
                )
    return None


def _advice(case: Case, ranks: int, backends: list[str], free: int) -> str:
    fitting = [
        shape
        for shape in NAMED_SHAPES.values()
        if memory_bytes(_case(shape, case.dtype, case.direction), ranks, backends) <= free
    ]
    if fitting:
        largest = max(fitting, key=lambda shape: shape.elements)
        return f"It would fit with --shape {largest.name}, or with fewer --backends."
    return "Try a small one, such as --shape 1,1024,8,64, or fewer ranks."


def _case(shape: Shape, dtype: str, direction: str) -> Case:
    return Case(shape.name, shape.batch, shape.tokens, shape.heads, shape.width, dtype, direction)


class Progress:
    """A status line that is rewritten on a terminal; elsewhere a line a case, and one every ten seconds."""

    _EVERY_S = 10.0

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._heading = self._text = ""
        self._last = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def say(self, text: str) -> None:
        self._heading = self._text = text
        self._print()

    def iteration(self, job: Job, case: Case, ranks: int, done: int) -> None:
        heading = f"{case.shape} {case.dtype}, {case.direction}, {ranks} ranks"
        total = job.warmup + job.iterations
        changed, self._heading = heading != self._heading, heading
        state = f"iteration {done} of {total}" if done else "making the inputs"
        self._text = f"{heading}: {state}, each {len(job.backends)} backends"
        if changed or self._terminal:
            self._print()

    def tick(self) -> None:
        if self._text and (self._terminal or time.monotonic() - self._last > self._EVERY_S):
            self._print()

    def close(self) -> None:
        if self._terminal and self._text:
            print("\r\x1b[2K", end="", flush=True)
        self._text = ""

    def _print(self) -> None:
        self._last = time.monotonic()
        line = f"[{self.elapsed_s:6.1f} s] {self._text}"
        print(f"\r\x1b[2K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)


def _listed(one: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    def parse(text: str) -> list[_T]:
        return list(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return parse


def _one_of(names: Sequence[str] | dict[str, Any]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def _rank_count(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks from 2 to {_MOST_RANKS}")
    return int(text)


def _shapes(text: str) -> list[Shape]:
    try:
        return parse_shapes(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"has to be at least {least}")
        return value

    return number
