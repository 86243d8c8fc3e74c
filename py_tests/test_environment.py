"""Poor surroundings, and memory that the caller holds."""

from __future__ import annotations

import ast
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import Exchange, assert_bits, coded, exchange_checked, group_of, moved, planted, same_bits
from fast_ulysses import _C
from launcher import Pool, Report


@contextlib.contextmanager
def bare_namespace() -> Iterator[list[str]]:
    """The command prefix that runs a process where the only network is `lo` and /dev/shm has 8 MB."""
    set_up = "ip link set lo up && mount -t tmpfs -o size=8m tmpfs /dev/shm && echo ready && exec sleep 600"
    holder = subprocess.Popen(["unshare", "-rnm", "sh", "-c", set_up], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError(f"no namespace can be made: {holder.communicate()[1].decode().strip()}")
        yield ["nsenter", "--target", str(holder.pid), "--user", "--net", "--mount", "--preserve-credentials"]
    finally:
        holder.kill()
        holder.communicate()


def exchange_in_bare_namespace(context: Any) -> tuple[list[str], int]:
    devices = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    with group_of(context, "shm") as group:
        assert fast_ulysses.init_group(context.pg, name="auto").transport == "shm"
        fast_ulysses.group.lookup(f"auto/{context.rank}of{context.size}#0").destroy()
        exchange_checked(group, Exchange((1, 32768, 4, 128)), torch.float32)
        assert group.stats()["capacity_bytes"] > 8 << 20
    return devices, shutil.disk_usage("/dev/shm").total


def test_network_of_lo_alone_and_small_dev_shm(
    launch: Callable[..., list[Report]], need: Callable[[str, bool, str], None]
) -> None:
    with contextlib.ExitStack() as stack:
        try:
            prefix = stack.enter_context(bare_namespace())
        except OSError as error:
            need("namespaces", False, str(error))
        for store in ("file", "tcp"):
            for report in launch(exchange_in_bare_namespace, 2, prefix=prefix, store=store):
                assert report.value == (["lo"], 8 << 20)


def check_held_windows(context: Any, slow_rank: int) -> bool:
    """Whether A still held what it should while the slow rank read it."""
    with group_of(context, "shm") as group:
        exchange = Exchange((1, 64 * context.size, 2 * context.size, 64))
        wholes = [coded(exchange.sizes, salt=salt) for salt in range(3)]
        q, k, q2 = (exchange.input(whole, group) for whole in wholes)
        expected = [exchange.result(whole, group) for whole in wholes]
        a, b = group.empty(expected[0].shape, q.dtype), group.empty(expected[1].shape, q.dtype)
        sent = exchange.peer_bytes(q.dtype, group)
        with moved(group, 3 * sent, calls=3):
            fast_ulysses.a2a(q, group, out=a)
            fast_ulysses.a2a(k, group, out=b)
            if context.rank == slow_rank:
                time.sleep(0.5)  # attends to A and B
            kept = same_bits(a, expected[0]) and same_bits(b, expected[1])
            fast_ulysses.a2a(q2, group, out=a)
        assert same_bits(a, expected[2]) or not kept
        return kept


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_a_window_that_the_caller_reads_is_not_overwritten(pool: Pool, slow_rank: int) -> None:
    assert pool.run(check_held_windows, 3, slow_rank) == [True] * 3


def check_held_windows_with_fault(context: Any) -> bool:
    with planted("drop-opening"):
        return check_held_windows(context, 1)


def test_without_the_opening_handshake_it_is(pool: Pool) -> None:
    """Negative control."""
    assert pool.run(check_held_windows_with_fault, 3)[1] is False


def check_windows(context: Any) -> None:
    group = fast_ulysses.init_group(context.pg, transport="shm")
    splits = (5, 4)
    exchange = Exchange((1, 12, 9, 8), scatter_splits=splits)
    whole = coded(exchange.sizes, torch.float32)
    x, expected = exchange.input(whole, group), exchange.result(whole, group)
    window = group.empty(expected.shape, x.dtype)  # the ranks' shapes differ
    empty = group.empty((0, 3), torch.float64)
    assert empty.shape == (0, 3)
    fast_ulysses.a2a(x, group, out=window, **exchange.arguments())
    assert_bits(window, expected, "a window")
    later = group.empty((4 * window.numel(),), x.dtype)
    part = later[: window.numel()].view(window.shape)
    fast_ulysses.a2a(x, group, out=part, **exchange.arguments())
    assert_bits(part, expected, "the first part of a larger window")
    part = later[window.numel() : 2 * window.numel()].view(window.shape)
    fast_ulysses.a2a(x, group, out=part, **exchange.arguments())
    assert_bits(part, expected, "the middle of a window")
    group.destroy()
    assert_bits(window, expected, "after destroy()")
    window.fill_(1)
    assert int(window.sum()) == window.numel()


def test_windows_differ_in_shape_and_outlive_the_group(pool: Pool) -> None:
    pool.run(check_windows, 2)


def check_windows_that_differ(context: Any) -> None:
    group = fast_ulysses.init_group(context.pg, transport="shm", timeout=20)
    x = coded((1, 4, 2 * context.size, 8))
    window = group.empty((1, 4 * context.size, 2, 8), x.dtype)
    out = window if context.rank == 0 else torch.empty_like(window)
    with pytest.raises(fast_ulysses.CollectiveMismatch, match="window"):
        fast_ulysses.a2a(x, group, out=out)
    group.destroy()


def test_a_window_on_one_rank_alone_is_a_mismatch(pool: Pool) -> None:
    pool.run(check_windows_that_differ, 2)


def test_import_needs_no_gpu_and_starts_no_thread() -> None:
    code = (
        "import threading, torch;"  # a CUDA build of torch maps libraries of its own
        "libraries = lambda: {line.split()[-1] for line in open('/proc/self/maps') if '.so' in line};"
        "threads, before = threading.active_count(), libraries();"
        "import fast_ulysses;"
        "assert threading.active_count() == threads;"
        "added = {path for path in libraries() - before if 'cuda' in path or 'nvshmem' in path or 'nccl' in path};"
        "assert not added, added;"
        "print(fast_ulysses.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == fast_ulysses.__version__


def check_cuda_tensors(context: Any) -> None:
    with group_of(context, "shm") as group:
        exchange = Exchange((2, 9, 4, 8), gather_splits=(5, 4))
        whole = coded(exchange.sizes).cuda()
        x, expected = exchange.input(whole, group), exchange.result(whole, group)
        got = fast_ulysses.a2a(x, group, **exchange.arguments())
        assert got.is_cuda
        assert_bits(got, expected, "a CUDA tensor")
        out = torch.empty_like(expected)
        fast_ulysses.a2a(x, group, out=out, **exchange.arguments())
        assert_bits(out, expected, "a CUDA tensor as out=")
        assert_bits(fast_ulysses.unshard(x, group), whole, "unshard")
        stats = group.stats()
        assert (stats["native_bytes"], stats["fallback_calls"]) == (0, 2)
        assert stats["fallback_reasons"] == {"a cuda tensor on transport 'shm', which serves CPU tensors": 2}
        exchange_checked(group, exchange)  # CPU tensors still go natively


def test_cuda_tensors_go_over_torch(pool: Pool, need: Callable[[str, bool, str], None]) -> None:
    need("cuda", torch.cuda.is_available(), "torch sees no CUDA device")
    pool.run(check_cuda_tensors, 2, timeout=120)


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


def test_the_stub_of_the_binding_is_true() -> None:
    stub = Path(fast_ulysses.__file__).with_name("_C.pyi")
    names = declared(ast.parse(stub.read_text()).body)
    assert set(names) == {name for name in dir(_C) if not name.startswith("__") or name == "__version__"}
    for name in ("Plan", "Group"):
        node = names[name]
        assert isinstance(node, ast.ClassDef)
        real = {member for member in dir(getattr(_C, name)) if not member.startswith("_")}
        assert set(declared(node.body)) - {"__init__"} == real
    for name, node in names.items():
        if isinstance(node, ast.ClassDef) and issubclass(getattr(_C, name), Exception):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            assert bases == [base.__name__ for base in getattr(_C, name).__bases__], name
