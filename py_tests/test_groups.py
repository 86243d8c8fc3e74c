"""Making groups: any ranks in any order, several at once, the vote on the transport, and what ranks must agree on."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import fast_ulysses
import pytest
import torch.distributed as dist
from coded import Exchange, assert_bits, coded, exchange_checked, group_of, planted
from fast_ulysses import InvalidArgument, PeerTimeout, StateError, TransportError
from fast_ulysses.group import parse_handle
from launcher import Pool, Report
from torch.distributed.device_mesh import init_device_mesh

Launch = Callable[..., list[Report]]


def make(pg: Any, transport: str, **options: Any) -> fast_ulysses.Group:
    group = fast_ulysses.init_group(pg, transport=transport, **options)
    assert group.transport == transport
    return group


def check_small_then_large(context: Any, transport: str) -> float:
    start = time.monotonic()
    if context.rank < 2:
        small = make(context.process_group([0, 1]), transport)
        exchange_checked(small, Exchange((1, 8, 4, 8)))
    large = make(context.pg, transport)
    exchange_checked(large, Exchange((1, 9, 6, 8)))
    assert large.global_ranks == (0, 1, 2)
    if context.rank < 2:
        exchange_checked(small, Exchange((1, 8, 4, 8)))
        small.destroy()
    large.destroy()
    return time.monotonic() - start


def test_a_group_of_two_then_one_of_three(pool: Pool, transport: str) -> None:
    assert max(pool.run(check_small_then_large, 3, transport)) < 10


def check_independent_pairs(context: Any, transport: str) -> None:
    pair = context.rank // 2
    group = make(context.process_group([2 * pair, 2 * pair + 1]), transport)
    for call in range(7 if pair == 0 else 3):
        exchange_checked(group, Exchange((1, 8, 4, 8)), salt=call)
    group.destroy()


def test_two_pairs_do_not_touch_each_other(pool: Pool, transport: str) -> None:
    pool.run(check_independent_pairs, 4, transport)


def check_strided_and_reordered(context: Any, transport: str) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with pytest.raises(InvalidArgument, match=f"rank {context.rank} is not a member"):
        fast_ulysses.init_group(pairs[1 - context.rank // 2])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sp", "tp"))
    with pytest.raises(InvalidArgument, match=r"2 dimensions named \('sp', 'tp'\).*mesh\['sp'\]"):
        fast_ulysses.init_group(mesh)
    with fast_ulysses.init_group(mesh["sp"], transport=transport) as strided:
        assert strided.transport == transport
        assert strided.global_ranks == ((0, 2) if context.rank % 2 == 0 else (1, 3))
        assert strided.rank == context.rank // 2
        exchange_checked(strided, Exchange((1, 8, 4, 8)))
    check_order(context.process_group([3, 1, 2, 0]), context, transport)
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        check_order(dist.new_group([3, 1, 2, 0], sort_ranks=False), context, transport)


def check_order(pg: dist.ProcessGroup, context: Any, transport: str) -> None:
    with fast_ulysses.init_group(pg, transport=transport) as reordered:
        assert reordered.global_ranks == (3, 1, 2, 0)
        assert reordered.rank == [3, 1, 2, 0].index(context.rank)
        exchange_checked(reordered, Exchange((1, 8, 4, 8)))
        whole = coded((1, 10, 2, 4))
        assert_bits(fast_ulysses.unshard(fast_ulysses.shard(whole, reordered), reordered), whole)


def test_data_is_in_group_rank_order(launch: Launch, transport: str) -> None:
    launch(check_strided_and_reordered, 4, transport)


def check_one_rank_fails(context: Any, fault: str) -> str | None:
    with planted(fault):
        with pytest.raises(TransportError) as caught:
            fast_ulysses.init_group(context.pg, transport="shm")
        with fast_ulysses.init_group(context.pg) as group:
            assert group.transport == "torch"
            assert f"transport 'shm' cannot serve this group: {group.fallback_reason}" in str(caught.value)
            exchange_checked(group, Exchange((1, 8, 4, 8)))
            reason = group.fallback_reason
    with group_of(context, "shm") as group:
        exchange_checked(group, Exchange((1, 8, 4, 8)))
    return reason


@pytest.mark.parametrize("fault", ["transport-fail@2", "transport-fail-late@2"])
def test_a_transport_that_fails_on_one_rank_is_left_by_all(pool: Pool, fault: str) -> None:
    reasons = set(pool.run(check_one_rank_fails, 4, fault))
    assert len(reasons) == 1
    assert "rank 2 (global rank 2): TransportError: planted" in reasons.pop()


def check_other_host(context: Any) -> str | None:
    import fast_ulysses.group as group_module

    real_host = group_module.this_host
    group_module.this_host = lambda: f"node{context.rank}/boot"
    try:
        with pytest.raises(TransportError, match=r"spans several hosts \(node0, node1\)"):
            fast_ulysses.init_group(context.pg, transport="shm")
        with fast_ulysses.init_group(context.pg) as group:
            assert group.transport == "torch"
            exchange_checked(group, Exchange((1, 8, 4, 8)))
            return group.fallback_reason
    finally:
        group_module.this_host = real_host


def test_a_group_that_spans_hosts(pool: Pool) -> None:
    assert pool.run(check_other_host, 2) == ["the group spans several hosts (node0, node1)"] * 2


def check_terms_that_differ(context: Any) -> list[str]:
    texts = []
    mine = context.rank == 1
    for options in (
        {"name": "one" if mine else "other"},
        {"transport": "torch" if mine else "auto"},
        {"heap_bytes": 4096 if mine else None},
        {"timeout": 5 if mine else 6},
        {"transport": "pigeon" if mine else "auto"},
        {"timeout": -1 if mine else 6},
        {"heap_bytes": -1 if mine else None},
        {"name": "a b" if mine else "other"},
        {"name": "" if mine else "other"},
    ):
        with pytest.raises(InvalidArgument) as caught:
            fast_ulysses.init_group(context.pg, **options)
        texts.append(str(caught.value).split(": ", 1)[1])
    with group_of(context, "shm") as group:
        exchange_checked(group, Exchange((1, 8, 4, 8)))
    return texts


def test_terms_that_differ_are_refused_on_all_ranks(pool: Pool) -> None:
    texts = pool.run(check_terms_that_differ, 2)
    assert texts[0] == texts[1]
    assert texts[0][0] == "name has to be the same on every rank, but is rank 0: 'other', rank 1: 'one'"
    assert texts[0][4] == "rank 1: transport 'pigeon' is unknown; there are auto, shm, torch"


def check_absent_rank(context: Any) -> None:
    if context.rank == 1:
        time.sleep(2.5)
        with pytest.raises((PeerTimeout, fast_ulysses.PeerError), match="rank 0"):
            fast_ulysses.init_group(context.pg, timeout=1)
    else:
        with pytest.raises(PeerTimeout, match="in vain for rank 1"):
            fast_ulysses.init_group(context.pg, timeout=1)
    context.barrier()
    with group_of(context, "shm") as group:  # the numbers of the members have not drifted
        exchange_checked(group, Exchange((1, 8, 4, 8)))


def test_a_rank_that_does_not_come_is_named(pool: Pool) -> None:
    pool.run(check_absent_rank, 2)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def check_log_line(context: Any) -> list[str]:
    handler = _Lines()
    logger = logging.getLogger("fast_ulysses")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with group_of(context, "shm", name="logged"), group_of(context, "torch", name="logged"):
            pass
        with planted("transport-fail@1"), fast_ulysses.init_group(context.pg, name="logged"):
            pass
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    return handler.lines


def test_one_line_names_ranks_and_transport(pool: Pool) -> None:
    for lines in pool.run(check_log_line, 2):
        assert lines == [
            "INFO group logged: ranks [0, 1], transport shm",
            "INFO group logged: ranks [0, 1], transport torch (transport='torch' was asked for)",
            "INFO group logged: ranks [0, 1], transport torch (rank 1 (global rank 1): TransportError: "
            "planted by FAST_ULYSSES_TEST_FAULT=transport-fail@1)",
        ]


def check_object(context: Any, transport: str) -> None:
    with group_of(context, transport, timeout=timedelta(seconds=7)) as group:
        assert group.timeout_s == 7
        for act in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(StateError, match="keep its handle"):
                act(group)
        parts = parse_handle(group.handle)
        assert (parts.name, parts.rank, parts.size) == (group.name, group.rank, group.size)
        group.reserve(1 << 16)
        exchange_checked(group, Exchange((1, 8 * context.size, 2 * context.size, 16)))
        group.trim()
        exchange_checked(group, Exchange((1, 8 * context.size, 2 * context.size, 16)))
        with pytest.raises(InvalidArgument):
            group.reserve(-1)
    assert fast_ulysses.init_group(context.pg, transport=transport).timeout_s == 60  # the process group's own
    fast_ulysses.group._live.clear()


def test_the_group_object(pool: Pool, transport: str) -> None:
    pool.run(check_object, 2, transport)


def check_reserved(context: Any) -> None:
    with group_of(context, "shm", heap_bytes=1 << 20) as group:
        assert group.stats()["capacity_bytes"] >= 1 << 20
        exchange_checked(group, Exchange((1, 64, 4, 64)))
        assert group.stats()["growths"] == 0
        group.reserve(1 << 22)
        assert group.stats()["capacity_bytes"] >= 1 << 22
        group.trim()
        assert group.stats()["capacity_bytes"] < 1 << 20


def test_memory_is_reserved_and_given_back(pool: Pool) -> None:
    pool.run(check_reserved, 2)


def check_many(context: Any, transport: str) -> None:
    groups = [make(context.pg, transport, name=f"n{i % 2}") for i in range(6)]
    assert len({group.handle for group in groups}) == 6
    for salt, group in enumerate(groups):
        exchange_checked(group, Exchange((1, 8, 4, 8)), salt=salt)
    for group in reversed(groups):
        group.destroy()


def test_several_groups_at_once(pool: Pool, transport: str) -> None:
    pool.run(check_many, 2, transport)


@pytest.mark.parametrize("text", ["", "sp", "sp/1of2", "sp/2of2#0", "sp/0of0#0", "a b/0of1#0", "sp/0of1#0 ", "/0of1#0"])
def test_text_that_is_not_a_handle(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a group handle"):
        parse_handle(text)


def test_without_a_process_group() -> None:
    with pytest.raises(StateError, match="init_process_group"):
        fast_ulysses.init_group()
    with pytest.raises(InvalidArgument, match="got 'sp'"):
        fast_ulysses.init_group("sp")  # type: ignore[arg-type]
