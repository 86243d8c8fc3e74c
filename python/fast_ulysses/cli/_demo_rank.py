"""One process of the demo: ``python -m fast_ulysses.cli._demo_rank (reference|rank) JOB RANK SIZE PIPE``."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import fast_ulysses
from fast_ulysses.integrations.diffusers import (
    SPAN_ATTENTION,
    SPAN_GATHER,
    SPAN_JOIN,
    SPAN_SCATTER,
    GroupExchange,
    parallelize,
)
from fast_ulysses.timeline import Timeline, total_s

from ._demo_job import HEADS, Case, Job, build_model, make_inputs, native_bytes
from ._ranks import leave_with_parent, report_to_parent

SPAN_FORWARD = "forward"

Report = Callable[[dict[str, Any]], None]


class LeftOut(GroupExchange):
    """The armed control: shapes as after an exchange, but nothing from the peers; what they hold is zero here."""

    def __init__(self, group: fast_ulysses.Group) -> None:
        super().__init__(group)
        self._rank = group.rank

    def scatter_heads(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: list[int], tokens: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = (self._own(x, 2, heads, 1, tokens) for x in (query, key, value))
        return query, key, value

    def gather_heads(self, out: torch.Tensor, heads: list[int], tokens: list[int]) -> torch.Tensor:
        return self._own(out, 1, tokens, 2, heads)

    def _own(self, x: torch.Tensor, cut: int, cuts: list[int], fill: int, fills: list[int]) -> torch.Tensor:
        sizes = list(x.shape)
        sizes[cut], sizes[fill] = cuts[self._rank], sum(fills)
        result = x.new_zeros(sizes)
        own = result.narrow(fill, sum(fills[: self._rank]), fills[self._rank])
        own.copy_(x.narrow(cut, sum(cuts[: self._rank]), cuts[self._rank]))
        return result


class SwappedHeads(GroupExchange):
    """A planted fault: the first two heads change places on the way back."""

    def gather_heads(self, out: torch.Tensor, heads: list[int], tokens: list[int]) -> torch.Tensor:
        gathered = super().gather_heads(out, heads, tokens)
        return gathered[:, :, [1, 0, *range(2, gathered.shape[2])]]


def main(role: str, job_path: str, rank: str, size: str, pipe: str) -> None:
    leave_with_parent()
    report = report_to_parent(int(pipe))
    job = Job.load(Path(job_path))
    torch.set_num_threads(job.threads)
    torch.set_grad_enabled(False)
    if role == "reference":
        _run_reference(job, report)
    else:
        _run_rank(job, int(rank), int(size), report)


def _run_reference(job: Job, report: Report) -> None:
    report({"kind": "progress", "text": "building the model"})
    model = build_model(job.seed)
    for case in job.cases:
        inputs = make_inputs(case, job.seed)
        for number in range(case.forwards):
            report({"kind": "progress", "text": f"{case.tokens} tokens, forward {number + 1} of {case.forwards}"})
            begin = time.monotonic()
            output = model(**inputs, return_dict=False)[0]
            forward_s = time.monotonic() - begin
        torch.save(output, job.reference(case))
        result = {"case": case.name, "forward_s": forward_s, "largest": output.abs().max().item()}
        report({"kind": "result", "path": "reference", **result})


def _run_rank(job: Job, rank: int, size: int, report: Report) -> None:
    report({"kind": "progress", "text": "building the model on every rank"})
    model = build_model(job.seed)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{job.directory}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=job.timeout_s),
    )
    for transport in job.transports:
        with fast_ulysses.init_group(transport=transport, name=f"demo-{transport}") as group:
            if job.fault == "dead-rank" and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for case in job.cases:
                _measure(model, group, job, case, transport, report)
            if transport == job.transports[-1]:
                _measure(model, group, job, job.cases[0], "control", report)
    torch.distributed.destroy_process_group()


def _exchange_of(group: fast_ulysses.Group, job: Job, path: str) -> GroupExchange:
    if path == "control":
        return GroupExchange(group) if job.fault == "idle-control" else LeftOut(group)
    if job.fault == "lost-exchange":
        return LeftOut(group)
    if job.fault == "swapped-heads" and path == job.transports[-1]:
        return SwappedHeads(group)
    return GroupExchange(group)


def _measure(model: Any, group: fast_ulysses.Group, job: Job, case: Case, path: str, report: Report) -> None:
    inputs = make_inputs(case, job.seed)
    timeline = Timeline()
    forwards = 1 if path == "control" else case.forwards
    with parallelize(model, group, timeline=timeline, exchange=_exchange_of(group, job, path)):
        for number in range(forwards):
            report(
                {"kind": "progress", "path": path, "text": f"{case.tokens} tokens, forward {number + 1} of {forwards}"}
            )
            torch.distributed.barrier()
            timeline.take()
            before = group.stats()
            with timeline.span(SPAN_FORWARD):
                output = model(**inputs, return_dict=False)[0]
            after = group.stats()
    spans = timeline.take()
    reference = torch.load(job.reference(case))
    tokens = fast_ulysses.balanced_split(case.tokens, group.size)
    report(
        {
            "kind": "result",
            "path": path,
            "case": case.name,
            "transport": group.transport,
            "difference": (output - reference).abs().max().item(),
            "bits": hashlib.sha256(output.contiguous().numpy().tobytes()).hexdigest(),
            "forward_s": total_s(spans, [SPAN_FORWARD]),
            "exchange_s": total_s(spans, [SPAN_SCATTER, SPAN_GATHER]),
            "attention_s": total_s(spans, [SPAN_ATTENTION]),
            "join_s": total_s(spans, [SPAN_JOIN]),
            "native_bytes": after["native_bytes"] - before["native_bytes"],
            "expected_bytes": native_bytes(tokens, fast_ulysses.balanced_split(HEADS, group.size), group.rank),
            "fallback_calls": after["fallback_calls"] - before["fallback_calls"],
            "spans": spans,
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
