"""The picture of a benchmark run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._bench_report import Row, by_case, bytes_text

__all__ = ["draw"]

_COLORS = {
    "torch": "#8d99ae",
    "packed_fused": "#edae49",
    "fast_ulysses": "#2e86ab",
    "fast_ulysses_into": "#5fa8c6",
    "fast_ulysses_out": "#1b4965",
    "copy": "#d1495b",
}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a panel a case, a bar a backend, the copy as a line across. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cases = by_case(rows)
    columns = min(2, len(cases))
    lines = math.ceil(len(cases) / columns)
    bars = max(len(case) for case in cases)
    figure, axes = plt.subplots(
        lines, columns, figsize=(7.6 * columns, lines * (0.9 + 0.42 * bars) + 0.8), squeeze=False, layout="constrained"
    )
    flat = [axis for line in axes for axis in line]
    for axis, case in zip(flat, cases, strict=False):
        _draw_case(axis, case)
    for axis in flat[len(cases) :]:
        axis.axis("off")
    machine = rows[0]["machine"]
    figure.suptitle(
        f"One exchange, slowest rank, smallest of {rows[0]['iterations']} iterations; whiskers to the 90th percentile\n"
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_case(axis: Any, case: Sequence[Row]) -> None:
    longest = max(row["p90_ms"] for row in case)
    for place, row in enumerate(case):
        least = row["min_ms"]
        axis.barh(
            place,
            least,
            height=0.7,
            color=_COLORS.get(row["backend"], "0.5"),
            xerr=[[0.0], [max(0.0, row["p90_ms"] - least)]],
            error_kw={"ecolor": "0.45", "elinewidth": 1.0, "capsize": 2.5},
        )
        text = f"{least:.3g} ms"
        if row["ratio_vs_copy"] is not None and row["backend"] != "copy":
            text += f", {row['ratio_vs_copy']:.2f}x copy"
        if not row["exact"]:
            text += ", WRONG BITS"
        axis.text(row["p90_ms"] + 0.015 * longest, place, text, va="center", fontsize=9)
        if row["backend"] == "copy":
            axis.axvline(least, color=_COLORS["copy"], linestyle="--", linewidth=1.2, zorder=3)
    axis.set_yticks(range(len(case)), [row["backend"] for row in case])
    axis.set_ylim(len(case) - 0.45, -0.55)
    axis.set_xlim(0, 1.42 * longest)
    axis.set_xlabel("ms")
    axis.grid(axis="x", color="0.88", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    head = case[0]
    axis.set_title(
        f"{head['shape']} {head['dtype']}, {head['direction']}, {head['ranks']} ranks, "
        f"{bytes_text(head['bytes'])} a rank",
        loc="left",
        fontsize=10,
    )
