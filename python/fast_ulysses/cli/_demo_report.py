"""What came out of the demo: the checks, the table and the picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from ..timeline import Panel, Timeline, draw
from ._demo_job import Case, Job

__all__ = ["BAR", "CONTROL_BAR", "PATHS", "Finding", "Results", "check", "draw_picture", "table"]

BAR = 1e-5
"""Largest difference of a parallel run to one process: fp32 outputs of size one to three, whose matrix products are cut
into other shapes. Measured about 1e-6."""
CONTROL_BAR = 1e-3
"""What the run without exchanges has to be wrong by at least, or the comparison would not notice a missing one."""

PATHS = {
    "reference": "(a) one process",
    "torch": "(b) torch.distributed",
    "shm": "(c) shared memory, native",
    "control": "control: exchange left out",
}

# The names of the spans; those of the integration are repeated here, since to import it is to import torch.
SPAN_FORWARD, SPAN_SCATTER, SPAN_GATHER = "forward", "exchange q, k, v", "exchange output"
_COLORS = {
    SPAN_SCATTER: "#d1495b",
    SPAN_GATHER: "#edae49",
    "attention": "#2e86ab",
    "join output": "#6a4c93",
    SPAN_FORWARD: "#e6e9ed",
}


class Results:
    """What the processes reported, by path, case and rank."""

    def __init__(self, job: Job, ranks: int) -> None:
        self.job = job
        self.ranks = ranks
        self._by: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}

    def add(self, rank: int, event: dict[str, Any]) -> None:
        self._by.setdefault((event["path"], event["case"]), {})[rank] = event

    def of(self, path: str, case: Case) -> list[dict[str, Any]]:
        """By rank; empty where that path was not run on that case."""
        found = self._by.get((path, case.name), {})
        return [found[rank] for rank in sorted(found)]


@dataclass(frozen=True)
class Finding:
    """One check: whether it holds, and what was found."""

    holds: bool
    text: str


def check(results: Results) -> list[Finding]:
    """Everything that has to hold."""
    findings: list[Finding] = []
    for case in results.job.cases:
        for transport in results.job.transports:
            findings.extend(_check_run(results, transport, case))
        if len(results.job.transports) > 1:
            findings.append(_check_bits(results, case))
    findings.append(_check_control(results))
    return findings


def _check_run(results: Results, transport: str, case: Case) -> Iterator[Finding]:
    reports = results.of(transport, case)
    name = f"{case.name}, {PATHS[transport]}"
    if len(reports) != results.ranks:
        yield Finding(False, f"{name}: {len(reports)} of {results.ranks} ranks reported")
        return
    difference = _worst(reports)
    yield Finding(difference <= BAR, f"{name}: differs from one process by {difference:.1e} (bar {BAR:.0e})")
    served = {report["transport"] for report in reports}
    sent = [report["native_bytes"] for report in reports]
    if transport == "shm":
        due = [report["expected_bytes"] for report in reports]
        fallbacks = sum(report["fallback_calls"] for report in reports)
        yield Finding(
            served == {"shm"} and sent == due and min(due) > 0 and not fallbacks,
            f"{name}: served by {', '.join(sorted(served))}; {sum(sent):,} bytes sent natively, the shapes ask for "
            f"{sum(due):,}; {fallbacks} calls went elsewhere",
        )
    else:
        yield Finding(
            served == {"torch"} and not any(sent), f"{name}: served by {', '.join(sorted(served))}, nothing natively"
        )


def _check_bits(results: Results, case: Case) -> Finding:
    bits = {report["bits"] for path in ("torch", "shm") for report in results.of(path, case)}
    reports = sum(len(results.of(path, case)) for path in ("torch", "shm"))
    same = len(bits) == 1 and reports == 2 * results.ranks
    verdict = "every bit equal" if same else f"{len(bits)} different outputs in {reports} reports"
    return Finding(same, f"{case.name}: (b) and (c) on all {results.ranks} ranks: {verdict}")


def _check_control(results: Results) -> Finding:
    reports = results.of("control", results.job.cases[0])
    differences = [float(report["difference"]) for report in reports]
    armed = len(differences) == results.ranks and all(difference > CONTROL_BAR for difference in differences)
    found = f"{min(differences):.1e}" if differences else "nothing, it was not run"
    return Finding(
        armed, f"control, exchange left out: differs from one process by {found} (has to exceed {CONTROL_BAR:.0e})"
    )


def _worst(reports: list[dict[str, Any]]) -> float:
    """The largest difference; a NaN counts as the largest, whatever stands beside it."""
    differences = [float(report["difference"]) for report in reports]
    return max(differences, key=lambda value: (value != value, value))


def table(results: Results) -> str:
    """One row a run. Times: the slowest rank's forward, and the ranks' mean of the spans within it."""
    rows = [("run", "tokens", "max |diff| to (a)", "forward s", "attention s", "exchanges s", "moving s", "native MB")]
    for case in results.job.cases:
        for path, title in PATHS.items():
            reports = results.of(path, case)
            if not reports:
                continue
            slowest = max(report["forward_s"] for report in reports)
            if path == "reference":
                rows.append((title, f"{case.tokens:,}", "", f"{slowest:.2f}", "", "", "", ""))
                continue
            attention = f"{mean(report['attention_s'] for report in reports):.2f}"
            exchanges = f"{mean(report['exchange_s'] for report in reports):.3f}"
            sent = f"{sum(report['native_bytes'] for report in reports) / 1e6:.1f}"
            moved = (exchanges, f"{_moving_s(reports):.3f}", sent) if path != "control" else ("none", "none", sent)
            rows.append((title, f"{case.tokens:,}", f"{_worst(reports):.2e}", f"{slowest:.2f}", attention, *moved))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.append("exchanges: the ranks' mean time inside the two exchanges of each layer, waiting for peers included;")
    lines.append("moving: the same of the rank that came last to each exchange, and so waited for nobody")
    return "\n".join(lines)


def _moving_s(reports: list[dict[str, Any]]) -> float:
    """Every rank makes the same exchanges in the same order: the n-th of one meets the n-th of the others."""
    exchanges = (SPAN_SCATTER, SPAN_GATHER)
    by_rank = [[span for span in Timeline(report["spans"]).spans if span.name in exchanges] for report in reports]
    meetings = [[spans[number] for spans in by_rank] for number in range(min(map(len, by_rank)))]
    return sum(max(meeting, key=lambda span: span.start_ns).duration_s for meeting in meetings)


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    first, *rest = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def draw_picture(results: Results, path: Path) -> None:
    """The last forward of the first case: (b) above (c)."""
    case = results.job.cases[0]
    panels = []
    for transport in results.job.transports:
        reports = results.of(transport, case)
        exchange_ms = 1e3 * mean(report["exchange_s"] for report in reports)
        moving_ms = 1e3 * _moving_s(reports)
        title = (
            f"{PATHS[transport]}: {exchange_ms:.0f} ms a rank in exchanges, waits included; {moving_ms:.0f} ms moving"
        )
        panels.append(Panel(title, [Timeline(report["spans"]).spans for report in reports]))
    draw(
        panels,
        path,
        colors=_COLORS,
        title=f"One forward of {case.tokens:,} tokens on {results.ranks} ranks (self-attention of each layer)",
        background=SPAN_FORWARD,
        zoom_on=SPAN_SCATTER,
    )
