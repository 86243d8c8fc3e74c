"""`fast-ulysses demo`: green as it is, red with whatever breaks an exchange, a check or a rank."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers", reason="needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'")
pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fast-ulysses-nvshmem[demo]'")

import fast_ulysses
from fast_ulysses.cli import demo
from fast_ulysses.cli.__main__ import main
from fast_ulysses.cli._demo_job import Case, Job, native_bytes
from fast_ulysses.cli._demo_report import Results, check

COMMAND = [sys.executable, "-m", "fast_ulysses"]
TINY = [Case("480x832", 1, 6, 12, 1), Case("uneven", 1, 6, 10, 1)]


def test_the_quick_demo_is_green(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run([*COMMAND, "demo", "--quick", "--out", str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all well" in done.stdout
    assert "served by shm" in done.stdout
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")


def run_tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> int:
    monkeypatch.setattr(demo, "_cases", lambda *_: TINY)
    return main(["demo", "--ranks", "2", "--out", str(tmp_path), *options])


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("lost-exchange", "FAIL 480x832, (c) shared memory, native: differs"),
        ("swapped-heads", "FAIL 480x832: (b) and (c) on all 2 ranks: 2 different outputs"),
        ("idle-control", "FAIL control, exchange left out"),
    ],
)
def test_a_planted_fault_is_red(
    fault: str, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tiny(monkeypatch, tmp_path, "--plant-fault", fault) == 1
    output = capsys.readouterr().out
    assert complaint in output
    assert "FAILED" in output


def test_a_rank_that_dies_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tiny(monkeypatch, tmp_path, "--plant-fault", "dead-rank") == 1
    assert "rank 1 was killed by SIGKILL" in capsys.readouterr().err


def processes_of(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in command:
            found.append(command)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_when_the_demo_is_ended_so_are_its_ranks(number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C is caught; a SIGKILL cannot be, and then the ranks leave by themselves."""
    marker = f"{tmp_path}/fast-ulysses-demo-"
    with subprocess.Popen(
        [*COMMAND, "demo", "--quick", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "building the model" in line:
                break
        assert processes_of(marker)
        process.send_signal(number)
        assert process.wait(20) == code
    deadline = time.monotonic() + 10
    while processes_of(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(marker)


def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "diffusers" else object())
    assert main(["demo"]) == 2
    assert "the demo needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"fast-ulysses {fast_ulysses.__version__}\n"


@pytest.mark.parametrize("ranks", range(2, 33))
def test_one_latent_is_never_divisible(ranks: int) -> None:
    for quick in (False, True):
        assert demo._cases(ranks, 1, quick)[1].tokens % ranks


def test_one_rank_is_refused() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    demo.add_arguments(parser)
    with pytest.raises(argparse.ArgumentError, match="at least 2"):
        parser.parse_args(["--ranks", "1"])


def test_bytes_of_the_shapes() -> None:
    """Two ranks with 3 and 2 tokens, 1 and 1 head, 2 layers: q, k, v out and the result back."""
    assert native_bytes([3, 2], [1, 1], 0) == 2 * (3 * 3 * 1 + 2 * 1) * 128 * 4
    assert native_bytes([3, 2], [1, 1], 1) == 2 * (3 * 2 * 1 + 3 * 1) * 128 * 4


# The checks themselves, on reports made by hand.


def good(path: str, case: Case) -> dict[str, Any]:
    native = path == "shm"
    return {
        "path": path,
        "case": case.name,
        "transport": "shm" if native or path == "control" else "torch",
        "difference": 0.2 if path == "control" else 1e-6,
        "bits": "abc",
        "native_bytes": 10 if native else 0,
        "expected_bytes": 10,
        "fallback_calls": 0 if native else 4,
    }


def failed_checks(path: str = "", rank: int = 0, **change: Any) -> list[str]:
    results = Results(Job(TINY, ["torch", "shm"], "", 0, 1, 1.0, None), 2)
    for reported in ("torch", "shm", "control"):
        for case in TINY if reported != "control" else TINY[:1]:
            for each in range(2):
                report = good(reported, case)
                if (reported, each) == (path, rank):
                    if change.get("absent"):
                        continue
                    report |= change
                results.add(each, report)
    return [finding.text for finding in check(results) if not finding.holds]


def test_good_reports_pass() -> None:
    assert failed_checks() == []


@pytest.mark.parametrize(
    ("path", "change", "complaint"),
    [
        ("torch", {"difference": 2e-5}, "differs from one process by 2.0e-05"),
        ("shm", {"difference": float("nan")}, "differs from one process by nan"),
        ("shm", {"bits": "abd"}, "2 different outputs"),
        ("shm", {"native_bytes": 9}, "19 bytes sent natively, the shapes ask for 20"),
        ("shm", {"fallback_calls": 1}, "1 calls went elsewhere"),
        ("shm", {"transport": "torch"}, "served by shm, torch"),
        ("torch", {"native_bytes": 1}, "nothing natively"),
        ("shm", {"absent": True}, "1 of 2 ranks reported"),
        ("control", {"difference": 1e-4}, "has to exceed"),
        ("control", {"difference": float("nan")}, "has to exceed"),
        ("control", {"absent": True}, "has to exceed"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_bad_report_fails(path: str, change: dict[str, Any], complaint: str, rank: int) -> None:
    failed = failed_checks(path, rank, **change)
    assert failed
    assert any(complaint in text for text in failed), failed
