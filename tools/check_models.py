#!/usr/bin/env python3
"""Checks the models of the protocol exhaustively with spin, and that each mutant of them fails for its own reason.

    python3 tools/check_models.py                      # tier ci: minutes
    python3 tools/check_models.py --tier full          # everything in docs/protocol/matrix.tsv
    python3 tools/check_models.py --only no-rule.p2    # some searches (repeatable, shell patterns)
    python3 tools/check_models.py --trail no-rule.p2   # the story of a counterexample
    python3 tools/check_models.py --lint               # the tables alone, without spin

Needs spin 6.5 and gcc, and less than 3 GB of memory a search.  A search that was cut short (depth, memory, time) never
counts as one that holds, and a mutant has to break the property that the matrix names for it.  Exits 1 if any verdict
differs from the expected one, 2 on wrong use or wrong tables.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROTOCOL_DIR = pathlib.Path(__file__).resolve().parent.parent / "docs" / "protocol"
COLUMNS = ("id", "tier", "model", "flags", "expected", "against", "depth", "size", "shows")
DEFAULT_DEPTH = 1_000_000
MEMORY_LIMIT_MB = 2900
TIMEOUT_S = {"ci": 300, "full": 3600}
COMPILE_TIMEOUT_S = 120
# Switches in which a mutant may differ from the search it is held against without being counted as a change of a rule:
# what is searched, how far, and what is looked at.
FREE_SWITCHES = {"P", "M", "N", "CALLS", "PEERS", "SIGNALLERS", "PLANS", "KINDS"}


class TableError(Exception):
    """The matrix or the README contradicts itself."""


@dataclasses.dataclass(frozen=True)
class Search:
    """One line of the matrix."""

    id: str
    tier: str
    model: str
    flags: tuple[str, ...]
    expected: tuple[str, ...]  # ("holds",) or the properties of which the mutant has to break one
    against: str  # for a mutant: the search that holds and differs from it in one rule
    depth: int
    large: bool  # worth the time of an optimising compiler
    shows: str

    @property
    def holds(self) -> bool:
        return self.expected == ("holds",)

    @property
    def switches(self) -> dict[str, str]:
        return dict(flag[2:].partition("=")[::2] for flag in self.flags)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a search came to: "holds", the name of the broken property, or "<kind>: why" where there is no verdict."""

    verdict: str
    states: int = 0
    depth: int = 0
    memory_mb: float = 0.0
    seconds: float = 0.0


# -------------------------------------------------------------------------------------------------------------- tables


def read_matrix(path: pathlib.Path) -> list[Search]:
    searches: list[Search] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = line.split("\t")
        if tuple(cells) == COLUMNS:
            continue
        if len(cells) != len(COLUMNS):
            raise TableError(f"{path.name}:{number}: {len(cells)} cells instead of {len(COLUMNS)}")
        row = dict(zip(COLUMNS, cells, strict=True))
        kind, _, properties = row["expected"].partition(":")
        if row["expected"] != "holds" and (kind != "fails" or not properties):
            raise TableError(
                f"{path.name}:{number}: expected is {row['expected']!r}, not 'holds' or 'fails:PROPERTY[|PROPERTY]'"
            )
        if row["tier"] not in TIMEOUT_S:
            raise TableError(f"{path.name}:{number}: unknown tier {row['tier']!r}")
        searches.append(
            Search(
                id=row["id"],
                tier=row["tier"],
                model=row["model"],
                flags=tuple(row["flags"].split()),
                expected=("holds",) if row["expected"] == "holds" else tuple(properties.split("|")),
                against="" if row["against"] == "-" else row["against"],
                depth=DEFAULT_DEPTH if row["depth"] == "-" else int(row["depth"]),
                large=row["size"] != "-",
                shows=row["shows"],
            )
        )
    return searches


def model_text(model: str) -> str:
    text = (PROTOCOL_DIR / model).read_text(encoding="utf-8")
    return text + "".join(model_text(name) for name in re.findall(r'^#include "([\w.]+)"', text, re.MULTILINE))


def lint_search(search: Search, by_id: dict[str, Search]) -> None:
    """A misspelt switch or property would make a search silently another one."""
    if not (PROTOCOL_DIR / search.model).is_file():
        raise TableError(f"{search.id}: no model {search.model}")
    text = model_text(search.model)
    for flag in search.flags:
        match = re.fullmatch(r"-D(\w+)=\d+", flag)
        if not match or f"#ifndef {match[1]}\n" not in text:
            raise TableError(f"{search.id}: {flag} is no switch of {search.model}")
    if len(search.switches) != len(search.flags):
        raise TableError(f"{search.id}: a switch is given twice")
    if search.holds:
        if search.against:
            raise TableError(f"{search.id}: only a mutant is held against another search")
        return
    for name in search.expected:
        if name != "deadlock" and f"ALWAYS({name}," not in text:
            raise TableError(f"{search.id}: {search.model} has no property {name}")
    base = by_id.get(search.against)
    if base is None or not base.holds or base.model != search.model:
        raise TableError(
            f"{search.id}: is held against {search.against!r}, which is no search of {search.model} that holds"
        )
    changed = {
        name
        for name in search.switches.keys() | base.switches.keys()
        if search.switches.get(name) != base.switches.get(name)
        and name not in FREE_SWITCHES
        and not name.startswith("CHECK_")
    }
    if len(changed) > 1:
        raise TableError(f"{search.id}: differs from {base.id} in more than one rule: {', '.join(sorted(changed))}")


def lint_readme(path: pathlib.Path, by_id: dict[str, Search]) -> None:
    """Each condition names searches that hold and mutants that fail, and no mutant is without a condition."""
    named: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not re.fullmatch(r"[AB]\d+", cells[0]) or len(cells) != 4:
            continue
        for cell, holds in ((cells[2], True), (cells[3], False)):
            ids = re.findall(r"`([^`]+)`", cell)
            if not ids:
                raise TableError(f"{path.name}: condition {cells[0]} has no {'holding search' if holds else 'mutant'}")
            for name in ids:
                matches = [
                    search for search in by_id.values() if search.id == name or search.id.startswith(f"{name}.p")
                ]
                if not matches or any(search.holds != holds for search in matches):
                    raise TableError(f"{path.name}: condition {cells[0]}: `{name}` is not what its column says")
                named.update(search.id for search in matches)
    unnamed = sorted(search.id for search in by_id.values() if not search.holds and search.id not in named)
    if unnamed:
        raise TableError(f"{path.name}: no condition names the mutants {', '.join(unnamed)}")


def load() -> list[Search]:
    searches = read_matrix(PROTOCOL_DIR / "matrix.tsv")
    by_id = {search.id: search for search in searches}
    if len(by_id) != len(searches):
        raise TableError("matrix.tsv: an id occurs twice")
    for search in searches:
        lint_search(search, by_id)
    lint_readme(PROTOCOL_DIR / "README.md", by_id)
    return searches


# ------------------------------------------------------------------------------------------------------------ searches


class Runner:
    """Runs commands in process groups of their own, so that a deadline or Ctrl-C ends a command with its children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: list[str], cwd: pathlib.Path, timeout_s: float) -> tuple[int | None, str]:
        """Exit status (None: the deadline passed) and everything printed."""
        with self._lock:
            if self._stopped:
                return None, ""
            process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        try:
            return_code: int | None
            try:
                output, _ = process.communicate(timeout=timeout_s)
                return_code = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return_code = None
            return return_code, output
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGKILL)


def judge(return_code: int | None, output: str, depth_limit: int) -> Outcome:
    """Reads what pan printed.  What is not beyond doubt a finished search or a named counterexample is no verdict."""

    def number(pattern: str) -> float:
        match = re.search(pattern, output)
        return float(match[1]) if match else 0.0

    states = int(number(r"(\d[\d.e+]*) states, stored"))
    depth = int(number(r"depth reached (\d+)"))
    memory_mb = number(r"([\d.]+)\s+total actual memory usage")

    def outcome(verdict: str) -> Outcome:
        return Outcome(verdict, states, depth, memory_mb)

    if return_code is None:
        return outcome("truncated: out of time")
    errors = re.findall(r"errors: (\d+)", output)
    if return_code != 0 or len(errors) != 1:
        lines = output.strip().splitlines() or ["no output"]
        return outcome(f"broken: pan exits {return_code}: {lines[0][:100]}")
    first_error = re.search(r"^pan:1: (.*)$", output, re.MULTILINE)
    if errors[0] != "0":
        text = first_error[1] if first_error else ""
        if text.startswith("invalid end state"):
            return outcome("deadlock")
        name = re.search(r"^assertion violated .*\|\|(\w+)\) \(at depth \d+\)$", text)
        return outcome(name[1] if name else f"broken: an error without a property: {text[:100]}")
    for sign, why in (
        ("max search depth too small", "search depth too small"),
        ("out of memory", "out of memory"),
        ("memory limit", "out of memory"),
        ("MEMLIM", "out of memory"),
        ("Search not completed", "search not completed"),
        ("Bit statespace", "not exhaustive"),
    ):
        if sign in output:
            return outcome(f"truncated: {why}")
    wanted = (r"^Full statespace search for:$", r"^\s*assertion violations\s+\+$", r"^\s*invalid end states\s+\+$")
    if first_error or not all(re.search(line, output, re.MULTILINE) for line in wanted):
        return outcome("broken: pan did not say that it searched everything")
    if depth >= depth_limit:
        return outcome("truncated: search depth too small")
    return outcome("holds")


def build(search: Search, directory: pathlib.Path, runner: Runner, spin_flags: list[str], gcc_flags: list[str]) -> str:
    """Makes directory/pan.  Returns why it could not, or nothing."""
    for path in PROTOCOL_DIR.glob("*.pml"):
        shutil.copy(path, directory)
    return_code, output = runner.run(
        ["spin", "-a", *search.flags, *spin_flags, search.model], directory, COMPILE_TIMEOUT_S
    )
    # spin reports errors in a model in its output, not always by its exit status
    if return_code != 0 or re.search(r"\berror\b", output, re.IGNORECASE) or not (directory / "pan.c").is_file():
        return f"broken: spin: {output.strip()[:200]}"
    memory = f"-DMEMLIM={MEMORY_LIMIT_MB}"
    command = ["gcc", "-w", "-DVECTORSZ=4096", memory, *gcc_flags, "-o", "pan", "pan.c"]
    return_code, output = runner.run(command, directory, COMPILE_TIMEOUT_S)
    if return_code != 0:
        return f"broken: gcc: {output.strip()[:200]}"
    return ""


def check(search: Search, runner: Runner, timeout_s: float | None) -> Outcome:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fast_ulysses_models_") as name:
        directory = pathlib.Path(name)
        # In a small search, and a counterexample is found by one, compiling costs more than searching.
        failure = build(search, directory, runner, [], ["-DCOLLAPSE", "-O1" if search.large else "-O0"])
        if failure:
            outcome = Outcome(failure)
        else:
            command = ["./pan", f"-m{search.depth}"]
            return_code, output = runner.run(command, directory, timeout_s or TIMEOUT_S[search.tier])
            outcome = judge(return_code, output, search.depth)
    return dataclasses.replace(outcome, seconds=time.monotonic() - start)


def narrate(search: Search, runner: Runner) -> int:
    """Prints a shortest counterexample where a breadth-first search finds one, else the first one found depth first."""
    for gcc_flags in (["-DBFS", "-DCOLLAPSE", "-O1"], ["-DCOLLAPSE", "-O1"]):
        with tempfile.TemporaryDirectory(prefix="fast_ulysses_models_") as name:
            directory = pathlib.Path(name)
            failure = build(search, directory, runner, ["-DNARRATE=1"], gcc_flags)
            if failure:
                print(failure)
                return 1
            return_code, output = runner.run(["./pan", f"-m{search.depth}"], directory, TIMEOUT_S[search.tier])
            if not (directory / f"{search.model}.trail").is_file():
                continue
            verdict = judge(return_code, output, search.depth).verdict
            print(f"{search.id}: {search.shows}\n{' '.join(search.flags)}\n{verdict}\n")
            _, story = runner.run(
                ["spin", "-t", *search.flags, "-DNARRATE=1", search.model], directory, TIMEOUT_S["ci"]
            )
            print(re.split(r"^#processes", story, maxsplit=1, flags=re.MULTILINE)[0].rstrip())
            return 0
    print(f"{search.id}: no counterexample")
    return 1


# ---------------------------------------------------------------------------------------------------------------- main


def as_expected(search: Search, outcome: Outcome) -> bool:
    return outcome.verdict in search.expected


def print_table(searches: list[Search], outcomes: dict[str, Outcome]) -> None:
    width = max(len(search.id) for search in searches)
    print(f"\n{'':4} {'id':{width}}  {'verdict':24} {'states':>10} {'depth':>8} {'MB':>6} {'s':>6}  shows")
    for search in searches:
        outcome = outcomes[search.id]
        mark = "ok" if as_expected(search, outcome) else "NOT"
        print(
            f"{mark:4} {search.id:{width}}  {outcome.verdict:24} {outcome.states:10} {outcome.depth:8} "
            f"{outcome.memory_mb:6.0f} {outcome.seconds:6.1f}  {search.shows}"
        )


def run_all(searches: list[Search], jobs: int, timeout_s: float | None) -> int:
    runner = Runner()
    outcomes: dict[str, Outcome] = {}
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(check, search, runner, timeout_s): search for search in searches}
        try:
            for done in concurrent.futures.as_completed(futures):
                search, outcome = futures[done], done.result()
                outcomes[search.id] = outcome
                mark = "ok" if as_expected(search, outcome) else f"NOT AS EXPECTED ({'|'.join(search.expected)})"
                progress = f"[{len(outcomes):3}/{len(searches)}] {search.id}: {outcome.verdict}"
                print(f"{progress} {outcome.seconds:.1f} s {mark}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
    print_table(searches, outcomes)
    passed = sum(as_expected(search, outcomes[search.id]) for search in searches)
    mutants = sum(not search.holds for search in searches)
    print(f"\n{len(searches) - mutants} searches to hold, {mutants} mutants to fail, {time.monotonic() - start:.0f} s")
    print(f"{passed} passed, {len(searches) - passed} failed")
    return 0 if passed == len(searches) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=("ci", "full"), default="ci", help="full includes ci")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="searches at once")
    parser.add_argument("--only", action="append", metavar="ID", help="ids or shell patterns, of either tier")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds for one search instead of its tier's")
    parser.add_argument("--trail", metavar="ID", help="tell the counterexample of a mutant")
    parser.add_argument("--lint", action="store_true", help="check the tables only")
    args = parser.parse_args()
    try:
        searches = load()
    except (TableError, OSError) as error:
        print(f"check_models: {error}", file=sys.stderr)
        return 2
    if args.lint:
        print(f"{len(searches)} searches, tables consistent")
        return 0
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"check_models: {tool} not found", file=sys.stderr)
            return 2
    if args.trail:
        chosen = [search for search in searches if search.id == args.trail]
        if not chosen:
            print(f"check_models: no search {args.trail}", file=sys.stderr)
            return 2
        return narrate(chosen[0], Runner())
    if args.only:
        chosen = [search for search in searches if any(fnmatch.fnmatch(search.id, pattern) for pattern in args.only)]
    else:
        chosen = [search for search in searches if search.tier == "ci" or args.tier == "full"]
    if not chosen:
        print("check_models: nothing to check", file=sys.stderr)
        return 2
    return run_all(chosen, max(1, args.jobs), args.timeout)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
