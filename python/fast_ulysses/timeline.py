"""Spans of time on every rank, and a picture of them.

A :class:`Timeline` belongs to one rank and records named spans on the monotonic clock. On Linux that clock counts from
one epoch for all processes of a host, so the spans of several ranks can be laid side by side as they are, with no clock
exchange. Spans are host time: of work that is only enqueued (CUDA) they show the enqueueing, not the execution.

Code that may be timed takes ``timeline: Timeline | None`` and asks :func:`span_maker` once for its ``span`` function;
with no timeline that is one shared do-nothing context manager, and no clock is read.

Recording needs the standard library alone; :func:`draw` needs matplotlib and says so when it is missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Panel", "Span", "Timeline", "draw", "require_matplotlib", "span_maker", "total_s"]

SpanMaker = Callable[[str], contextlib.AbstractContextManager[None]]


class Span(NamedTuple):
    """What ran from ``start_ns`` to ``end_ns`` (monotonic clock of the host)."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) * 1e-9


class Timeline:
    """The spans of one rank, in the order in which they ended. Not thread-safe: one timeline a thread."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Sequence[Any]] = ()) -> None:
        self.spans: list[Span] = [Span(str(name), int(start), int(end)) for name, start, end in spans]

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the body of the ``with`` statement, also when it raises."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.spans.append(Span(name, start_ns, time.monotonic_ns()))

    def take(self) -> list[Span]:
        """The spans so far; the timeline is empty afterwards."""
        spans, self.spans = self.spans, []
        return spans


class _NoSpan:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NO_SPAN = _NoSpan()


def span_maker(timeline: Timeline | None) -> SpanMaker:
    """``timeline.span``, or a function that does nothing and allocates nothing where there is no timeline."""
    if timeline is None:
        return lambda _name: _NO_SPAN
    return timeline.span


def total_s(spans: Iterable[Span], names: Iterable[str]) -> float:
    """Seconds spent in the spans with one of ``names`` (they must not overlap)."""
    wanted = frozenset(names)
    return sum(span.duration_s for span in spans if span.name in wanted)


@dataclass(frozen=True)
class Panel:
    """One run in the picture: a title, and the spans of each rank, by rank."""

    title: str
    ranks: Sequence[Sequence[Span]]


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the timeline picture needs matplotlib, which is not installed: pip install 'fast-ulysses-nvshmem[demo]'"
        ) from error


def draw(
    panels: Sequence[Panel],
    path: str | PathLike[str],
    *,
    colors: Mapping[str, str],
    title: str = "",
    background: str | None = None,
    zoom_on: str | None = None,
) -> None:
    """Write a PNG: the panels one above the other on a common scale, one bar a rank, rank 0 on top.

    ``colors`` gives the names to draw, in the order of the legend, and the colour of each. ``background`` names a span
    that encloses the others (the whole forward): it is drawn below them. With ``zoom_on`` a second column shows,
    enlarged, the first span of that name on all ranks, since an exchange is often too short to be seen beside what
    surrounds it; its scale is the same in all panels.
    """
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    columns = 2 if zoom_on is not None else 1
    rows = len(panels)
    bars = max((len(panel.ranks) for panel in panels), default=1)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(8.0 * columns, rows * (1.5 + 0.45 * bars) + 0.9),
        squeeze=False,
        layout="constrained",
    )
    for row, panel in enumerate(panels):
        zero_ns = _first_start_ns(panel)
        for column in range(columns):
            _draw_panel(axes[row][column], panel, zero_ns, colors, background)
        axes[row][0].set_title(panel.title, loc="left", fontsize=11)
        if zoom_on is not None:
            axes[row][1].set_title(f"enlarged: around the first '{zoom_on}'", loc="left", fontsize=11)
    for column in range(columns):
        axes[-1][column].set_xlabel("seconds since the forward began on the first rank")
    _share_scale([row[0] for row in axes])
    if zoom_on is not None:
        _zoom([row[1] for row in axes], panels, zoom_on)
    handles = [Patch(color=color) for color in colors.values()]
    figure.legend(handles, list(colors), loc="outside lower center", ncols=len(colors), frameon=False, fontsize=10)
    if title:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _first_start_ns(panel: Panel) -> int:
    return min((span.start_ns for spans in panel.ranks for span in spans), default=0)


def _draw_panel(axis: Any, panel: Panel, zero_ns: int, colors: Mapping[str, str], background: str | None) -> None:
    for rank, spans in enumerate(panel.ranks):
        # What encloses the others goes first, so that they lie on it.
        for span in sorted(spans, key=lambda span: span.name != background):
            color = colors.get(span.name)
            if color is None:
                continue
            # A bar of its own edge colour stays visible at any scale: at least half a point wide.
            width = 0.0 if span.name == background else 0.5
            axis.barh(
                rank,
                span.duration_s,
                left=(span.start_ns - zero_ns) * 1e-9,
                height=0.72,
                color=color,
                edgecolor=color,
                linewidth=width,
            )
    axis.set_yticks(range(len(panel.ranks)), [f"rank {rank}" for rank in range(len(panel.ranks))])
    axis.set_ylim(len(panel.ranks) - 0.45, -0.55)
    axis.grid(axis="x", color="0.85", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _share_scale(axes: Sequence[Any]) -> None:
    end = max(axis.get_xlim()[1] for axis in axes)
    for axis in axes:
        axis.set_xlim(0, end)


def _zoom(axes: Sequence[Any], panels: Sequence[Panel], name: str) -> None:
    """Set each axis to the first span of ``name`` in its panel, all as wide as the widest of these needs."""
    windows = []
    for panel in panels:
        zero_ns = _first_start_ns(panel)
        firsts = [next((span for span in spans if span.name == name), None) for spans in panel.ranks]
        seen = [span for span in firsts if span is not None]
        start_ns = min((span.start_ns for span in seen), default=zero_ns) - zero_ns
        end_ns = max((span.end_ns for span in seen), default=zero_ns) - zero_ns
        windows.append((start_ns * 1e-9, end_ns * 1e-9))
    width_s = max(end - start for start, end in windows) or 1e-3
    for axis, (start_s, _) in zip(axes, windows, strict=True):
        axis.set_xlim(start_s - 0.15 * width_s, start_s + 1.35 * width_s)
