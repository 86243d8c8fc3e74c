"""`fast-ulysses bench exchange`: right rows, red when a bit is wrong or a rank dies, and refusals before the start."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fast_ulysses
import pytest
import torch
from fast_ulysses.cli import bench
from fast_ulysses.cli.__main__ import main
from fast_ulysses.cli._bench_backends import Data, bits, is_copied
from fast_ulysses.cli._bench_gate import Gate, make_gate
from fast_ulysses.cli._bench_job import BACKENDS, DIRECTIONS, DTYPES, NATIVE, Case, Job, limit_vs_copy, memory_bytes
from fast_ulysses.cli._bench_rank import sent_natively
from fast_ulysses.cli._bench_report import host_text, make_rows, table
from fast_ulysses.shapes import NAMED_SHAPES, parse_shape, parse_shapes

COMMAND = [sys.executable, "-m", "fast_ulysses", "bench", "exchange"]
TINY = Case("1,12,4,8", 1, 12, 4, 8, "bf16", "scatter")
UNEVEN = Case("2,13,5,4", 2, 13, 5, 4, "fp16", "gather")
REQUIRED = {
    *("shape", "ranks", "dtype", "direction", "backend", "median_ms", "p90_ms", "min_ms", "ratio_vs_torch"),
    *("ratio_vs_copy", "limit_vs_copy", "host_us", "exact", "bytes", "native_bytes", "machine", "iterations"),
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even and uneven shards, both directions: every backend gives every bit, the native ones natively."""
    path = tmp_path / "made" / "result.json"
    options = ["--ranks", "2", "--shape", "1,12,4,8,2,13,5,4", "--iters", "10", "--warmup", "1", "--profile"]
    assert main(["bench", "exchange", *options, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "all 24 results exact on every rank" in printed
    assert "us (median" in printed
    assert "where the time goes" in printed
    assert "making the inputs" in printed
    rows = rows_of(path)
    assert [row["backend"] for row in rows] == list(BACKENDS) * 4
    for row in rows:
        assert set(row) >= REQUIRED
        assert row["exact"] is True
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["iterations"] == 10
        native = row["backend"] in NATIVE
        assert row["native_bytes"] == row["native_bytes_due"]
        assert (row["native_bytes"] > 0) == native
        assert (row["host_us"] is not None) == native
        assert row["limit_vs_copy"] == limit_vs_copy(row["backend"], 2)
    if importlib.util.find_spec("matplotlib"):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_flipped_bit_is_red(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAST_ULYSSES_TEST_FAULT", "flip-bit")
    path = tmp_path / "result.json"
    options = ["--shape", "1,12,4,8", "--iters", "10", "--direction", "gather", "--json", str(path)]
    assert main(["bench", "exchange", *options]) == 1
    assert {row["backend"]: row["exact"] for row in rows_of(path)} == {
        "torch": True,
        "packed_fused": True,
        "fast_ulysses": False,
        "fast_ulysses_out": False,
        "copy": True,
    }
    printed = capsys.readouterr().out
    assert "WRONG BITS: 1,12,4,8, gather, 2 ranks, fast_ulysses_out" in printed
    assert "FAILED" in printed


def test_a_rank_that_dies_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    options = ["--shape", "1,12,4,8", "--backends", "torch,copy", "--plant-fault", "dead-rank"]
    assert main(["bench", "exchange", *options]) == 1
    assert "rank 1 was killed by SIGKILL" in capsys.readouterr().err
    assert time.monotonic() - begin < 60


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


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--shape", "1,12,4,8", "--backends", "torch,copy", "--iters", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "making the inputs" in line:
                break
        assert processes_of(str(tmp_path))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    deadline = time.monotonic() + 10
    while processes_of(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(str(tmp_path))


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "available_bytes", lambda: 3 << 30)
    monkeypatch.setattr(bench, "Ranks", None)  # nothing may be started
    assert main(["bench", "exchange", "--ranks", "2,4", "--shape", "flux-1024,minimax-h3-15s"]) == 2
    refusal = capsys.readouterr().err
    assert "minimax-h3-15s bf16 on 2 ranks needs about" in refusal
    assert "It would fit with --shape hunyuanvideo-1.5" in refusal
    monkeypatch.setattr(bench, "available_bytes", lambda: 1 << 20)
    assert main(["bench", "exchange", "--shape", "flux-1024"]) == 2
    assert "--shape 1,1024,8,64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--shape", "wan-481p"], "'wan-481p' is neither B,N,H,D nor one of wan-480p"),
        (["--shape", "1,2,3"], "'1,2,3' is neither"),
        (["--shape", "1,0,3,4"], "have to be at least 1"),
        (["--ranks", "1"], "'1' is no number of ranks"),
        (["--ranks", "2,x"], "'x' is no number of ranks"),
        (["--iters", "9"], "has to be at least 10"),
        (["--backends", "nccl"], "'nccl' is not one of torch"),
        (["--direction", "sideways"], "'sideways' is not one of scatter, gather"),
    ],
)
def test_wrong_arguments(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "exchange", *options])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


def test_defaults() -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["exchange"])
    assert [shape.name for shape in args.shape] == ["wan-480p"]
    assert args.backends == ["torch", "packed_fused", "fast_ulysses", "fast_ulysses_out", "copy"]
    assert args.direction == ["scatter", "gather"]


# Shapes and arithmetic


def test_shapes_by_name_and_by_number() -> None:
    assert NAMED_SHAPES["wan-480p"].sizes == (1, 32_760, 40, 128)
    assert all(parse_shape(name).name == name for name in NAMED_SHAPES)
    assert [shape.sizes for shape in parse_shapes("flux-1024, 2,3,4,5,z-image")] == [
        (1, 4096, 24, 128),
        (2, 3, 4, 5),
        (1, 4096, 30, 128),
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bytes_of_a_case(direction: str, ranks: int) -> None:
    """What is kept and what is sent add up to the tensor, with empty shards too."""
    case = Case("any", 2, 13, 5, 4, "fp32", direction)
    total = 2 * 13 * 5 * 4 * 4
    assert sum(case.input_bytes(rank, ranks) for rank in range(ranks)) == total
    assert sum(case.output_bytes(rank, ranks) for rank in range(ranks)) == total
    kept = sum(2 * n * h * 4 * 4 for n, h in zip(case.token_splits(ranks), case.head_splits(ranks), strict=True))
    assert sum(case.sent_bytes(rank, ranks) for rank in range(ranks)) == total - kept


def test_limits() -> None:
    assert limit_vs_copy("fast_ulysses", 2) == 1.5
    assert limit_vs_copy("fast_ulysses", 4) == 1.75
    assert limit_vs_copy("fast_ulysses_out", 4) == 1.0
    assert limit_vs_copy("torch", 4) is None


def test_memory_grows_with_what_is_kept() -> None:
    assert memory_bytes(TINY, 4, ["copy"]) < memory_bytes(TINY, 4, ["copy", "fast_ulysses"])
    assert memory_bytes(TINY, 2, ["copy"]) < memory_bytes(TINY, 4, ["copy"])


# The data: right bits pass, and what an exchange can get wrong does not


def shards(case: Case, size: int) -> list[Data]:
    found = [Data(case, rank, size) for rank in range(size)]
    for data in found:
        data.renew()
        data.renew()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_expected_is_what_an_exchange_gives(dtype: str, direction: str) -> None:
    ranks = shards(Case("any", 2, 13, 5, 4, dtype, direction), 3)
    for data in ranks:
        blocks = [bits(peer.x).split(peer.scatter_splits, peer.scatter_dim)[data.rank] for peer in ranks]
        result = torch.cat(blocks, data.gather_dim).view(data.x.dtype)
        assert data.is_expected(result)
        assert not data.is_expected(torch.cat(blocks[::-1], data.gather_dim).view(data.x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_an_earlier_call_are_noticed(dtype: str) -> None:
    data = Data(Case("any", 2, 13, 5, 4, dtype, "scatter"), 0, 2)
    results = []
    for _ in range(100):
        data.renew()
        assert not any(data.is_expected(result) for result in results[-50:])
        results.append(data.expected.clone())


@pytest.mark.parametrize(("dim", "order"), [(1, [1, 0, *range(2, 13)]), (2, [1, 0]), (3, [0, 1, 3, 2]), (0, [1, 0])])
def test_swapped_elements_are_noticed(dim: int, order: list[int]) -> None:
    data = shards(Case("any", 2, 13, 4, 4, "bf16", "scatter"), 2)[0]
    assert data.is_expected(data.expected.clone())
    assert not data.is_expected(bits(data.expected).index_select(dim, torch.tensor(order)).view(torch.bfloat16))


def test_the_copy_is_checked_too() -> None:
    data = shards(UNEVEN, 2)[0]
    source = data.x.view(-1).view(torch.uint8)
    copied = torch.cat([source, source[:7]])
    assert is_copied(data, copied)
    copied[-1] ^= 1
    assert not is_copied(data, copied)


def test_a_call_that_went_elsewhere_is_an_error() -> None:
    data = shards(TINY, 2)[0]
    due = TINY.sent_bytes(0, 2)
    before = {"native_bytes": 5, "fallback_calls": 0, "fallback_reasons": {}}
    native = before | {"native_bytes": 5 + due}
    assert sent_natively("fast_ulysses", data, before, native) == due
    assert sent_natively("torch", data, before, before) == 0
    for name, after in (
        ("fast_ulysses", before),
        ("fast_ulysses_out", before | {"native_bytes": 4 + due}),
        ("fast_ulysses", native | {"fallback_calls": 1}),
        ("torch", native),
    ):
        with pytest.raises(RuntimeError, match="were sent natively, the shape asks for"):
            sent_natively(name, data, before, after)


# The gate


def test_the_gate_opens_for_all_at_once(tmp_path: Path) -> None:
    make_gate(tmp_path / "gate", 2)
    gates = [Gate(tmp_path / "gate", rank, 2, timeout_s=20) for rank in range(2)]
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (gates[0].wait(), passed.set()))
    waiting.start()
    assert not passed.wait(0.2)
    gates[1].wait()
    assert passed.wait(20)
    waiting.join()


def test_the_gate_gives_up(tmp_path: Path) -> None:
    make_gate(tmp_path / "gate", 2)
    with pytest.raises(TimeoutError, match="has not come to the gate"):
        Gate(tmp_path / "gate", 0, 2, timeout_s=0.05).wait()


# The rows, on reports made by hand


def report(wall_ms: list[float], **change: Any) -> dict[str, Any]:
    made = {
        "wall_ns": [int(ms * 1e6) for ms in wall_ms],
        "cpu_ns": [1000] * len(wall_ms),
        "page_faults": [0] * len(wall_ms),
        "exact": True,
        "native_bytes": 0,
        "floor_ns": [],
    }
    return made | change


def test_rows_take_the_slowest_rank() -> None:
    job = Job([TINY], ["torch", "fast_ulysses", "copy"], 1, 3, "", 1, 1.0, False, None)
    reports = {
        "torch": {0: report([8, 9, 12]), 1: report([10, 8, 8])},
        "fast_ulysses": {0: report([2, 2, 2]), 1: report([1, 4, 3], exact=False)},
        "copy": {0: report([1, 1, 1]), 1: report([1, 1, 1])},
    }
    rows = {row["backend"]: row for row in make_rows(job, TINY, 2, reports, None, {"cpu": "any"})}
    assert (rows["torch"]["min_ms"], rows["torch"]["median_ms"]) == (9.0, 10.0)
    assert rows["fast_ulysses"]["min_ms"] == 2.0
    assert rows["fast_ulysses"]["ratio_vs_torch"] == 4.5
    assert rows["fast_ulysses"]["ratio_vs_copy"] == 2.0
    assert rows["fast_ulysses"]["exact"] is False  # one rank is enough
    assert rows["torch"]["exact"] is True
    assert rows["copy"]["ratio_vs_copy"] == 1.0
    printed = table(list(rows.values()))
    assert [line.split()[-1] for line in printed.splitlines()[3:6]] == ["yes", "NO", "yes"]


def test_host_time_against_its_limits() -> None:
    plain = {"best": 11.0, "median": 11.5}
    assert "11.0 us (median 11.5), within the limit of 12 us" in host_text({"fast_ulysses": plain, "grad": None})
    assert "n/a" in host_text({"fast_ulysses": plain, "grad": None})
    text = host_text({"fast_ulysses": {"best": 12.5, "median": 13.0}, "grad": {"best": 19.0, "median": 21.0}})
    assert "OVER the limit of 12 us" in text
    assert "19.0 us (median 21.0), within the limit of 20 us" in text


def test_help_lists_shapes_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "exchange", "--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*NAMED_SHAPES, *BACKENDS))


def test_balanced_splits_are_the_package_s() -> None:
    assert UNEVEN.token_splits(2) == fast_ulysses.balanced_split(13, 2)
