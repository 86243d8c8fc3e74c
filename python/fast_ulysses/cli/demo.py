"""A real model on several ranks of this machine, held against one process.

The Wan video transformer of Hugging Face diffusers, with the head geometry of the published 1.3B model (12 x 128), two
layers and random weights, in fp32 on the CPU, runs on the same latents

  (a) in one process,
  (b) sequence-parallel, exchanges over torch.distributed (gloo),
  (c) sequence-parallel, exchanges through shared memory, natively,

and once more as a control with the exchange left out. The demo fails (exit code 1) unless (b) and (c) equal (a) to
1e-5 and each other bit for bit, (c) moved exactly the bytes that the shapes ask for, and the control is visibly wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ._demo_job import CHANNELS, FAULTS, HEAD_DIM, HEADS, LAYERS, PATCH, Case, Job
from ._demo_report import PATHS, Results, check, draw_picture, table
from ._ranks import RankFailedError, Ranks, cores

NAME = "demo"
HELP = "run a real video transformer on several ranks of this machine and check the result"

_SILENCE_S = 600.0
_TICK_S = 20.0
# Latent heights and widths near 480x832, whose tokens have few divisors; the quick ones are a quarter of it.
_UNEVEN = ((58, 102), (58, 106), (62, 106), (58, 94), (62, 94))
_UNEVEN_QUICK = ((30, 50), (26, 46), (34, 46), (22, 34))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=_at_least(2), default=None, help="processes to spread over (default 4)")
    parser.add_argument(
        "--frames", type=_at_least(1), default=None, help="latent frames, 1,560 tokens each (default 2)"
    )
    parser.add_argument("--quick", action="store_true", help="one frame and two ranks, under a minute")
    parser.add_argument(
        "--transport", choices=("both", "torch", "shm"), default="both", help="which of (b) and (c) to run"
    )
    parser.add_argument("--out", type=Path, default=Path("fast_ulysses_demo"), metavar="DIR", help="for the picture")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the latents")
    parser.add_argument(
        "--plant-fault", choices=FAULTS, default=None, help="break something, to see that the demo then fails"
    )


def run(args: argparse.Namespace) -> int:
    missing = [name for name in ("torch", "diffusers", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"the demo needs {', '.join(missing)}: pip install 'fast-ulysses-nvshmem[demo]'", file=sys.stderr)
        return 2
    ranks = args.ranks or (2 if args.quick else 4)
    cases = _cases(ranks, args.frames or (1 if args.quick else 2), args.quick)
    transports = ["torch", "shm"] if args.transport == "both" else [args.transport]
    args.out.mkdir(parents=True, exist_ok=True)
    _introduce(cases, ranks)
    screen = _Screen()
    with tempfile.TemporaryDirectory(prefix="fast-ulysses-demo-") as directory:
        job = Job(cases, transports, directory, args.seed, max(1, cores() // ranks), _SILENCE_S, args.plant_fault)
        try:
            results = _run_all(job, ranks, screen)
        except RankFailedError as failure:
            screen.close()
            print(f"\nFAILED: {failure}", file=sys.stderr)
            return 1
    screen.close()
    print(f"\n{table(results)}\n")
    picture = args.out / "timeline.png"
    draw_picture(results, picture)
    print(f"timeline: {picture.resolve()}\n")
    failures = [finding for finding in check(results) if not finding.holds]
    for finding in check(results):
        print(f"  {'ok  ' if finding.holds else 'FAIL'} {finding.text}")
    print(f"\n{'FAILED' if failures else 'all well'} after {screen.elapsed_s:.0f} s")
    if args.transport != "both":
        print(f"(only {args.transport} was run: nothing was compared with the other transport)")
    return 1 if failures else 0


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"has to be at least {least}")
        return value

    return number


def _cases(ranks: int, frames: int, quick: bool) -> list[Case]:
    """480x832 video, and a latent whose tokens the ranks do not divide."""
    even = Case("480x832", frames, 60, 104, 1 if quick else 2)
    for height, width in _UNEVEN_QUICK if quick else _UNEVEN:
        uneven = Case("uneven", 1, height, width, 1)
        if uneven.tokens % ranks:
            return [even, uneven]
    raise AssertionError(f"every latent of the list divides by {ranks}")


def _introduce(cases: list[Case], ranks: int) -> None:
    print(
        f"WanTransformer3DModel, {HEADS} heads x {HEAD_DIM}, {LAYERS} layers, fp32, random weights; "
        f"{ranks} ranks on {cores()} cores"
    )
    for case in cases:
        divides = "divisible" if case.tokens % ranks == 0 else "not divisible"
        print(
            f"  {case.name:8} latent {CHANNELS} x {case.frames} x {case.height} x {case.width}, patches of "
            f"{PATCH} x {PATCH}: {case.tokens:,} tokens ({divides} by {ranks})"
        )
    print()


def _run_all(job: Job, ranks: int, screen: _Screen) -> Results:
    path = Path(job.directory) / "job.json"
    results = Results(job, ranks)
    # (a) has the machine for itself, all cores; the ranks share them.
    Job(job.cases, job.transports, job.directory, job.seed, cores(), job.timeout_s, job.fault).save(path)
    _watch("reference", path, 1, cores(), results, screen)
    job.save(path)
    _watch("rank", path, ranks, job.threads, results, screen)
    return results


def _watch(role: str, job: Path, ranks: int, threads: int, results: Results, screen: _Screen) -> None:
    with Ranks("fast_ulysses.cli._demo_rank", [role, str(job)], ranks, job.parent, threads) as processes:
        for rank, event in processes.events(_SILENCE_S, screen.tick):
            if event["kind"] == "result":
                results.add(rank, event)
            elif rank == 0:
                screen.say(PATHS.get(event.get("path", role), "ranks"), event["text"])


class _Screen:
    """Progress: a line for every step, and a sign of life where one takes long."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._text = ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def say(self, path: str, text: str) -> None:
        self._text = f"{path:<28} {text}"
        self._print(self._text)

    def tick(self) -> None:
        if self._text and time.monotonic() - self._last > _TICK_S:
            self._print(f"{self._text} ... still at it")

    def close(self) -> None:
        self._text = ""

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        print(f"[{self.elapsed_s:6.1f} s] {text}", flush=True)
