"""One process of the benchmark: ``python -m fast_ulysses.cli._bench_rank (exchange|host) JOB RANK SIZE PIPE``."""

from __future__ import annotations

import gc
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fast_ulysses

from ._bench_backends import Call, Data, is_copied, make_backend
from ._bench_gate import Gate
from ._bench_job import NATIVE, Case, Job
from ._ranks import leave_with_parent, report_to_parent

Report = Callable[[dict[str, Any]], None]

_FLOOR_CALLS = 300
_HOST_BATCHES, _HOST_CALLS = 60, 200


@dataclass
class Record:
    """What one rank saw of one backend, an entry a timed call."""

    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)
    native_bytes: int = 0
    exact: bool = True


def main(role: str, job_path: str, rank_text: str, size_text: str, pipe: str) -> None:
    leave_with_parent()
    report = report_to_parent(int(pipe))
    job, rank, size = Job.load(Path(job_path)), int(rank_text), int(size_text)
    torch.set_num_threads(job.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.directory}/rendezvous-{role}-{size}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=job.timeout_s),
    )
    if role == "host":
        _measure_host(report)
    else:
        gate = Gate(job.gate, rank, size, job.timeout_s)
        for number, case in enumerate(job.cases):
            _measure(job, number, case, gate, report)
    dist.destroy_process_group()


def _measure(job: Job, number: int, case: Case, gate: Gate, report: Report) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    report({"kind": "progress", "case": number, "done": 0})
    data = Data(case, rank, size)
    with torch.inference_mode(), fast_ulysses.init_group(transport="shm", name=f"bench-{number}") as group:
        if group.transport != "shm":
            raise RuntimeError(f"the group is served by {group.transport}, not by shared memory")
        calls = {name: make_backend(name, data, group) for name in job.backends}
        records = {name: Record() for name in job.backends}
        gc.collect()
        gc.disable()
        for iteration in range(job.warmup + job.iterations):
            turn = iteration % len(job.backends)
            for name in job.backends[turn:] + job.backends[:turn]:
                _one_call(name, calls[name], data, group, gate, records[name], iteration >= job.warmup)
            if job.fault == "dead-rank" and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            report({"kind": "progress", "case": number, "done": iteration + 1})
        gc.enable()
        floor_ns = _floor(group, gate) if job.profile else []
        for name, record in records.items():
            report(
                {
                    "kind": "result",
                    "case": number,
                    "backend": name,
                    "wall_ns": record.wall_ns,
                    "cpu_ns": record.cpu_ns,
                    "page_faults": record.page_faults,
                    "exact": record.exact,
                    "native_bytes": record.native_bytes,
                    "floor_ns": floor_ns,
                }
            )


def _one_call(
    name: str, call: Call, data: Data, group: fast_ulysses.Group, gate: Gate, record: Record, timed: bool
) -> None:
    data.renew()
    before = group.stats()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    gate.wait()
    cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
    result = call()
    wall_ns, cpu_ns = time.perf_counter_ns() - start_ns, time.process_time_ns() - cpu_ns
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    after = group.stats()
    if not (is_copied(data, result) if name == "copy" else data.is_expected(result)):
        record.exact = False  # in a warm-up call too
    record.native_bytes = sent_natively(name, data, before, after)
    if timed:
        record.wall_ns.append(wall_ns)
        record.cpu_ns.append(cpu_ns)
        record.page_faults.append(faults)


def sent_natively(name: str, data: Data, before: dict[str, Any], after: dict[str, Any]) -> int:
    """The bytes that a call sent natively. Raises unless they are what the shape asks for; nothing, if not native."""
    due = data.case.sent_bytes(data.rank, data.size) if name in NATIVE else 0
    sent = int(after["native_bytes"] - before["native_bytes"])
    fallbacks = after["fallback_calls"] - before["fallback_calls"]
    if sent != due or fallbacks:
        raise RuntimeError(
            f"{name}, rank {data.rank}: {sent:,} bytes were sent natively, the shape asks for {due:,}; "
            f"{fallbacks} calls went over torch.distributed: {after['fallback_reasons']}"
        )
    return sent


def _floor(group: fast_ulysses.Group, gate: Gate) -> list[int]:
    """Exchanges of one row a peer: what a call costs that has next to nothing to move."""
    x = torch.zeros(1, 1, group.size, 4)
    times = []
    for _ in range(_FLOOR_CALLS):
        gate.wait()
        start_ns = time.perf_counter_ns()
        fast_ulysses.a2a(x, group)
        times.append(time.perf_counter_ns() - start_ns)
    return times


def _measure_host(report: Report) -> None:
    """The host's part of a call: one rank, one token, so that nothing is waited for and next to nothing is moved."""
    x = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    with fast_ulysses.init_group(transport="shm", name="bench-host") as group:
        with torch.inference_mode():
            plain = _call_times_us(lambda: fast_ulysses.a2a(x, group))
            out = torch.empty_like(x)
            into = _call_times_us(lambda: fast_ulysses.a2a(x, group, out=out))
            window = group.empty(x.shape, x.dtype)
            zero_copy = _call_times_us(lambda: fast_ulysses.a2a(x, group, out=window))
        needs_grad = x.clone().requires_grad_()
        try:
            fast_ulysses.a2a(needs_grad, group)
            grad = _call_times_us(lambda: fast_ulysses.a2a(needs_grad, group))
        except fast_ulysses.InvalidArgument:
            grad = None  # an op without a gradient refuses such an input
    report(
        {
            "kind": "host",
            "fast_ulysses": plain,
            "fast_ulysses_into": into,
            "fast_ulysses_out": zero_copy,
            "grad": grad,
        }
    )


def _call_times_us(call: Callable[[], object]) -> dict[str, float]:
    """Best and middle of batches of calls, us a call."""
    batches = []
    gc.collect()
    for _ in range(_HOST_BATCHES):
        start_ns = time.perf_counter_ns()
        for _ in range(_HOST_CALLS):
            call()
        batches.append((time.perf_counter_ns() - start_ns) / _HOST_CALLS / 1e3)
    return {"best": min(batches), "median": statistics.median(batches)}


if __name__ == "__main__":
    main(*sys.argv[1:])
