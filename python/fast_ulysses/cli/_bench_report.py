"""What came out of the benchmark: rows of JSON, the table, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ._bench_job import NATIVE, Case, Job, limit_vs_copy

__all__ = ["HOST_GRAD_LIMIT_US", "HOST_LIMIT_US", "Events", "host_text", "make_rows", "profile_text", "table"]

HOST_LIMIT_US, HOST_GRAD_LIMIT_US = 12.0, 20.0

Row = dict[str, Any]
Events = dict[int, dict[str, Any]]
"""What the ranks reported of one backend of one case, by rank."""


def make_rows(
    job: Job, case: Case, ranks: int, reports: dict[str, Events], host: dict[str, Any] | None, machine: Row
) -> list[Row]:
    """One row a backend. The time of an iteration is that of the slowest rank; ratios are of the smallest times."""
    times = {name: _slowest(by_rank, "wall_ns") for name, by_rank in reports.items()}
    return [
        {
            "shape": case.shape,
            "sizes": [case.batch, case.tokens, case.heads, case.width],
            "ranks": ranks,
            "dtype": case.dtype,
            "direction": case.direction,
            "backend": name,
            "median_ms": _ms(statistics.median(times[name])),
            "p90_ms": _ms(_p90(times[name])),
            "min_ms": _ms(min(times[name])),
            "ratio_vs_torch": _ratio(times.get("torch"), times[name]),
            "ratio_vs_copy": _ratio(times[name], times.get("copy")),
            "limit_vs_copy": limit_vs_copy(name, ranks),
            "host_us": _host(host, name),
            "host_grad_us": _host(host, "grad") if name == "fast_ulysses" else None,
            "exact": all(report["exact"] for report in by_rank.values()),
            "bytes": max(case.output_bytes(rank, ranks) for rank in range(ranks)),
            "native_bytes": sum(report["native_bytes"] for report in by_rank.values()),
            "native_bytes_due": sum(case.sent_bytes(r, ranks) for r in range(ranks)) if name in NATIVE else 0,
            "cpu_ms": _ms(_mean_of_medians(by_rank, "cpu_ns")),
            "page_faults": round(_mean_of_medians(by_rank, "page_faults")),
            "floor_us": _floor_us(by_rank),
            "iterations": job.iterations,
            "warmup": job.warmup,
            "machine": machine,
        }
        for name, by_rank in reports.items()
    ]


def _slowest(by_rank: Events, key: str) -> list[int]:
    return [max(values) for values in zip(*(report[key] for report in by_rank.values()), strict=True)]


def _p90(values: Sequence[int]) -> float:
    return float(statistics.quantiles(values, n=10, method="inclusive")[-1])


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 6)


def _ratio(above: Sequence[int] | None, below: Sequence[int] | None) -> float | None:
    return None if above is None or below is None else round(min(above) / min(below), 4)


def _host(host: dict[str, Any] | None, name: str) -> float | None:
    found = None if host is None else host.get(name)
    return None if found is None else round(found["best"], 3)


def _mean_of_medians(by_rank: Events, key: str) -> float:
    return float(statistics.mean(statistics.median(report[key]) for report in by_rank.values()))


def _floor_us(by_rank: Events) -> float | None:
    times = _slowest(by_rank, "floor_ns")
    return round(statistics.median(times) / 1e3, 3) if times else None


def host_text(host: dict[str, Any]) -> str:
    """The host time of a call, against its limits."""
    plain, grad = host["fast_ulysses"], host["grad"]
    lines = [_host_line("a2a, one rank, one token, inference_mode", plain, HOST_LIMIT_US)]
    if grad is None:
        lines.append("  the same with an input that needs grad: n/a, a2a has no gradient here")
    else:
        lines.append(_host_line("the same, forward, with an input that needs grad", grad, HOST_GRAD_LIMIT_US))
    return "host time a call\n" + "\n".join(lines)


def _host_line(what: str, found: dict[str, float], limit_us: float) -> str:
    verdict = "within" if found["best"] <= limit_us else "OVER"
    return f"  {what}: {found['best']:.1f} us (median {found['median']:.1f}), {verdict} the limit of {limit_us:.0f} us"


_COLUMNS = ("backend", "min ms", "median", "p90", "vs torch", "vs copy", "limit", "cpu ms", "exact")


def table(rows: Sequence[Row]) -> str:
    """A block a case, a line a backend."""
    blocks = []
    for group in by_case(rows):
        head = group[0]
        lines = [_COLUMNS, *(_line(row) for row in group)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
        body = [
            "  " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ]
        blocks.append("\n".join([case_title(head), body[0], "  " + "  ".join("-" * w for w in widths), *body[1:]]))
    legend = (
        "times are those of the slowest rank; ratios are of the smallest times\n"
        "vs torch: how many times faster; vs copy: how many times longer, limit: what that has to be, by bytes copied\n"
        "cpu ms: CPU time a rank and call, of all its threads"
    )
    return "\n\n".join([*blocks, legend])


def by_case(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of one exchange together, in the order in which they came."""
    cases: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["shape"], row["ranks"], row["dtype"], row["direction"]), []).append(row)
    return list(cases.values())


def case_title(row: Row) -> str:
    sizes = " x ".join(f"{n:,}" for n in row["sizes"])
    name = row["shape"] if "," in row["shape"] else f"{row['shape']} ({sizes})"
    return f"{name} {row['dtype']}, {row['direction']}, {row['ranks']} ranks, {bytes_text(row['bytes'])} a rank"


def bytes_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _line(row: Row) -> tuple[str, ...]:
    times = (_time(row["min_ms"]), _time(row["median_ms"]), _time(row["p90_ms"]))
    ratios = (_factor(row["ratio_vs_torch"]), _factor(row["ratio_vs_copy"]), _factor(row["limit_vs_copy"]))
    return (row["backend"], *times, *ratios, _time(row["cpu_ms"]), "yes" if row["exact"] else "NO")


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:.1f}"


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def profile_text(rows: Sequence[Row]) -> str:
    """Where the time of a native call goes, by the differences of what was measured (smallest times)."""
    lines = ["where the time goes, from the differences between the ways to call (smallest times)"]
    for group in by_case(rows):
        of = {row["backend"]: row for row in group}
        fresh, into, out = (of.get(f"fast_ulysses{suffix}") for suffix in ("", "_into", "_out"))
        if fresh is None or into is None or out is None or out["floor_us"] is None:
            continue
        floor_ms = out["floor_us"] / 1e3
        place_ms = into["min_ms"] - out["min_ms"] + floor_ms
        asleep_ms = max(0.0, into["median_ms"] - into["cpu_ms"])
        lines += [
            f"  {case_title(group[0])}",
            f"    an exchange of next to nothing (handshake, host)   {floor_ms:.3f} ms",
            f"    push and own rows: out= of group.empty, less two   {out['min_ms'] - 2 * floor_ms:.3f} ms",
            f"    place: what out= of an ordinary tensor takes more  {place_ms:.3f} ms",
            f"    new memory: what a new result takes more           {fresh['min_ms'] - into['min_ms']:.3f} ms, "
            f"{fresh['page_faults'] - into['page_faults']:,} page faults",
            f"    a rank off its core in the median call (waiting)   {asleep_ms:.3f} ms",
        ]
    return "\n".join(lines)
