"""Recording spans, and the picture of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fast_ulysses.timeline import Panel, Span, Timeline, draw, span_maker, total_s


def test_spans_are_recorded_in_the_order_in_which_they_end() -> None:
    timeline = Timeline()
    with timeline.span("outer"), timeline.span("inner"):
        pass
    inner, outer = timeline.take()
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert timeline.spans == []


def test_a_span_that_raises_is_recorded() -> None:
    timeline = Timeline()
    with pytest.raises(KeyError), timeline.span("x"):
        raise KeyError
    assert [span.name for span in timeline.spans] == ["x"]


def test_without_a_timeline_nothing_is_made() -> None:
    span = span_maker(None)
    assert span("a") is span("b")
    with span("a"):
        pass


def test_spans_survive_json() -> None:
    spans = [Span("a", 1, 5), Span("b", 2, 3)]
    assert Timeline(json.loads(json.dumps(spans))).spans == spans


def test_total() -> None:
    spans = [Span("a", 0, 1_000_000_000), Span("b", 0, 7), Span("a", 2_000_000_000, 2_500_000_000)]
    assert total_s(spans, ["a"]) == pytest.approx(1.5)


@pytest.mark.parametrize("zoom_on", [None, "exchange", "never seen"])
def test_a_picture_is_written(tmp_path: Path, zoom_on: str | None) -> None:
    pytest.importorskip("matplotlib")
    ranks = [[Span("exchange", 100 + rank, 200), Span("forward", 0, 1000)] for rank in range(3)]
    path = tmp_path / "picture.png"
    panels = [Panel("one", ranks), Panel("none", [[], [], []])]
    draw(panels, path, colors={"exchange": "red", "forward": "0.9"}, background="forward", zoom_on=zoom_on)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'fast-ulysses-nvshmem\[demo\]'"):
        draw([], tmp_path / "picture.png", colors={})
