"""Exchanges against the global tensor, bit for bit, on both transports."""

from __future__ import annotations

from typing import Any

import fast_ulysses
import pytest
import torch
from coded import DTYPES, Exchange, assert_bits, coded, exchange_checked, group_of, moved, planted, same_bits
from launcher import Pool


def check_exchanges(context: Any, transport: str, exchanges: list[Exchange], dtypes: list[torch.dtype]) -> None:
    with group_of(context, transport) as group:
        for salt, (exchange, dtype) in enumerate((e, d) for e in exchanges for d in dtypes):
            exchange_checked(group, exchange, dtype, salt)


CASES = {
    "12 heads after 3": (4, [Exchange((1, 32, 3, 64), 1, 2, gather_splits=(1, 1, 1, 0)), Exchange((1, 32, 12, 64))]),
    "30 heads over 4": (4, [Exchange((1, 64, 30, 128), scatter_splits=(8, 8, 7, 7))]),
    "28 heads over 8": (8, [Exchange((1, 64, 28, 128), scatter_splits=(4, 4, 4, 4, 3, 3, 3, 3))]),
    "one head a rank": (4, [Exchange((1, 64, 4, 64))]),
    "empty head shards": (4, [Exchange((1, 64, 2, 64), scatter_splits=(1, 1, 0, 0))]),
    "9 tokens over 2": (2, [Exchange((1, 9, 4, 8), gather_splits=(5, 4))]),
    "14310 tokens over 4": (4, [Exchange((1, 14310, 24, 128), gather_splits=(3578, 3578, 3577, 3577))]),
    "empty token shards": (8, [Exchange((1, 5, 8, 64), gather_splits=(1, 1, 1, 1, 1, 0, 0, 0))]),
    "both uneven": (3, [Exchange((2, 10, 7, 16), scatter_splits=(3, 0, 4), gather_splits=(0, 9, 1))]),
    "nothing at all": (2, [Exchange((1, 0, 4, 8)), Exchange((0, 4, 4, 8))]),
    "batches over 2": (2, [Exchange((b, 8, 8, 8)) for b in (1, 2, 3)]),
    "batches over 4": (4, [Exchange((b, 8, 8, 8)) for b in (1, 2, 3)]),
    "gather heads over 8": (8, [Exchange((2, 1024, 64, 16), 1, 2), Exchange((2, 1024, 8, 16), 1, 2)]),
    "widths": (3, [Exchange((1, 12, 6, d)) for d in (72, 80, 96, 4, 1)]),
    "one rank": (1, [Exchange((2, 6, 4, 8))]),
    "SHD": (2, [Exchange((8, 6, 16), 1, 0)]),
    "SBHD": (2, [Exchange((8, 2, 6, 16), 2, 0)]),
    "BHSD": (2, [Exchange((2, 6, 8, 16), 1, 2)]),
    "five dims": (2, [Exchange((2, 4, 3, 6, 8), 3, 1), Exchange((4, 2, 6, 5, 8), 0, 2)]),
}


@pytest.mark.parametrize("case", CASES)
def test_exchange_and_inverse(pool: Pool, transport: str, case: str) -> None:
    ranks, exchanges = CASES[case]
    dtypes = [torch.bfloat16] if case == "14310 tokens over 4" else [torch.bfloat16, torch.float32]
    pool.run(check_exchanges, ranks, transport, exchanges, dtypes)


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_dtype_keeps_every_bit(pool: Pool, transport: str, ranks: int) -> None:
    """Coded bits cover NaN payloads, infinities and negative zeros of the small dtypes."""
    pool.run(check_exchanges, ranks, transport, [Exchange((2, 6, 6, 64))], DTYPES)


def check_special_values(context: Any, transport: str) -> None:
    patterns = {
        torch.float32: [0x7FC00001, 0x7F800001, 0x7FFFFFFF, -0x80000000, 0x7F800000, -0x800000, 1],
        torch.float64: [0x7FF8000000000001, 0x7FF0000000000001, -(1 << 63), 0x7FF0000000000000, 1],
        torch.bfloat16: [0x7FC1, 0x7F81, -0x8000, 0x7F80, -0x80, 1],
        torch.float16: [0x7E01, 0x7C01, -0x8000, 0x7C00, -0x400, 1],
    }
    carriers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    with group_of(context, transport) as group:
        for dtype, bits in patterns.items():
            count = 4 * group.size * group.size
            repeated = torch.tensor([bits[i % len(bits)] for i in range(count)], dtype=carriers[dtype.itemsize])
            whole = repeated.view(dtype).view(1, group.size, group.size, 4)
            exchange = Exchange(tuple(whole.shape))
            got = fast_ulysses.a2a(exchange.input(whole, group), group)
            assert_bits(got, exchange.result(whole, group), str(dtype))


def test_special_values(pool: Pool, transport: str) -> None:
    pool.run(check_special_values, 2, transport)


def check_random_lengths(context: Any, transport: str, count: int) -> None:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1024, 8193, (count,), generator=generator).tolist()
    with group_of(context, transport) as group:
        for salt, length in enumerate(lengths):
            splits = tuple(fast_ulysses.balanced_split(length, group.size))
            exchange_checked(group, Exchange((1, length, 4, 64), gather_splits=splits), salt=salt)
        if transport == "shm":
            largest_bytes = max(lengths) * 64 * 2  # one head a rank, bf16
            assert largest_bytes <= group.stats()["capacity_bytes"] <= 2 * largest_bytes


def test_random_lengths(pool: Pool, transport: str) -> None:
    """All exact, and the memory is bounded by the largest."""
    pool.run(check_random_lengths, 4, transport, 30, timeout=120)


def check_strided(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        exchange = Exchange((2, 4 * group.size, 2 * group.size, 16))
        packed = coded((2, 4 * group.size, 3, 2 * group.size, 16))
        for part in range(3):  # slices of a fused QKV projection
            run_view(group, exchange, packed[:, :, part], exchange.input(packed[:, :, part], group))
        whole = coded(exchange.sizes)
        x = exchange.input(whole, group)
        run_view(group, exchange, whole, x.transpose(1, 2).contiguous().transpose(1, 2))
        run_view(group, exchange, whole, x.transpose(2, 3).contiguous().transpose(2, 3))
        odd = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)  # a storage offset of two bytes
        run_view(group, exchange, whole, odd.copy_(x))
        every_other = torch.empty(*x.shape[:-1], 32, dtype=x.dtype)[..., ::2]
        run_view(group, exchange, whole, every_other.copy_(x))
        one_batch = coded((1, *exchange.sizes[1:])).expand(exchange.sizes)
        run_view(group, exchange, one_batch, exchange.input(one_batch, group))
        one_head = coded((2, 4 * group.size, 1, 16)).expand(exchange.sizes)
        run_view(group, exchange, one_head, exchange.input(one_head, group))
        one_number = coded((2, 4 * group.size, 2 * group.size, 1)).expand(exchange.sizes)
        run_view(group, exchange, one_number, exchange.input(one_number, group))


def run_view(group: fast_ulysses.Group, exchange: Exchange, whole: torch.Tensor, x: torch.Tensor) -> None:
    with moved(group, exchange.peer_bytes(x.dtype, group)):
        y = fast_ulysses.a2a(x, group)
    assert y.is_contiguous()
    assert_bits(y, exchange.result(whole, group), f"strides {x.stride()}")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_strided_inputs(pool: Pool, transport: str, ranks: int) -> None:
    pool.run(check_strided, ranks, transport)


def check_three_together(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        splits = tuple(fast_ulysses.balanced_split(10, group.size))
        exchange = Exchange((2, 10, 2 * group.size, 8), gather_splits=splits)
        packed = coded((2, 10, 3, 2 * group.size, 8))
        inputs = [exchange.input(packed[:, :, part], group) for part in range(3)]
        with moved(group, 3 * exchange.peer_bytes(packed.dtype, group)):
            results = fast_ulysses.a2a_qkv(*inputs, group, **exchange.arguments())
        for part, got in enumerate(results):
            assert_bits(got, exchange.result(packed[:, :, part], group), f"part {part}")
        assert len({t.untyped_storage().data_ptr() for t in (*results, packed)}) == 4
        before = [t.clone() for t in results]
        for _ in range(3):  # three more layers leave the earlier results alone
            other = fast_ulysses.a2a_qkv(*[torch.zeros_like(t) for t in inputs], group, **exchange.arguments())
            fast_ulysses.a2a(other[0], group, **exchange.inverse().arguments())
        for got, kept in zip(results, before, strict=True):
            assert_bits(got, kept, "after three layers")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_qkv_in_one_exchange(pool: Pool, transport: str, ranks: int) -> None:
    pool.run(check_three_together, ranks, transport)


def check_all_to_all_single(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        for shape in [(2,), (2, 3), (1, 3, 5), (2, 3, 2, 2, 3), (1, 2, 2, 2, 2, 2), (0, 4), (2, 0)]:
            sizes = (shape[0] * group.size, *shape[1:])
            inputs = [coded(sizes, torch.float32, salt) for salt in range(group.size)]
            expected = torch.cat([x.unflatten(0, (group.size, shape[0]))[group.rank] for x in inputs])
            x = inputs[group.rank]
            with moved(group, x.numel() * 4 // group.size * (group.size - 1)):
                got = fast_ulysses.all_to_all_single(x, group)
            assert got.is_contiguous()
            assert_bits(got, expected, f"all_to_all_single {shape}")
            strided = x.repeat_interleave(2)[::2] if x.dim() == 1 else x.transpose(0, -1).contiguous().transpose(0, -1)
            assert_bits(fast_ulysses.all_to_all_single(strided, group), expected, f"strided {shape}")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_to_all_single(pool: Pool, transport: str, ranks: int) -> None:
    pool.run(check_all_to_all_single, ranks, transport)


def check_empty_shards_into_windows(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        exchange = Exchange((1, 9, 2, 8), scatter_splits=(2, 0), gather_splits=(4, 5))
        whole = coded(exchange.sizes)
        expected = exchange.result(whole, group)
        out = group.empty(expected.shape, whole.dtype)
        for _ in range(2):
            with moved(group, exchange.peer_bytes(whole.dtype, group)):
                fast_ulysses.a2a(exchange.input(whole, group), group, **exchange.arguments(), out=out)
            assert_bits(out, expected, "into a window")


def test_a_window_for_no_heads(pool: Pool, transport: str) -> None:
    """A rank whose window stays empty still makes the call that the others make."""
    pool.run(check_empty_shards_into_windows, 2, transport)


def check_payload_and_scales(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        rows = (2, 3 * group.size, 2 * group.size)
        exchange_checked(group, Exchange((*rows, 64)), torch.float8_e4m3fn)
        exchange_checked(group, Exchange((*rows, 1)), torch.float32)


def test_fp8_payload_and_scales_move_alike(pool: Pool, transport: str) -> None:
    pool.run(check_payload_and_scales, 3, transport)


def check_one_rank_copies(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        x = coded((1, 4, 4, 8))
        y = fast_ulysses.a2a(x, group)
        assert_bits(y, x)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert fast_ulysses.all_to_all_single(x, group).data_ptr() != x.data_ptr()


def test_one_rank_gets_a_copy(pool: Pool, transport: str) -> None:
    pool.run(check_one_rank_copies, 1, transport)


def check_input_overwritten(context: Any, transport: str, calls: int) -> int:
    """How many results were wrong, with pauses at random on every rank and the input overwritten after each call."""
    wrong = 0
    generator = torch.Generator().manual_seed(context.rank)
    pauses = (torch.rand(calls, generator=generator) < 0.02).tolist()
    with group_of(context, transport) as group:
        exchange = Exchange((1, 8 * group.size, group.size, 64))
        wholes = [coded(exchange.sizes, torch.float32, salt) for salt in range(7)]
        inputs = [exchange.input(whole, group).clone() for whole in wholes]
        results = [exchange.result(whole, group).contiguous() for whole in wholes]
        x = torch.empty_like(inputs[0])
        for call in range(calls):
            x.copy_(inputs[call % 7])
            y = fast_ulysses.a2a(x, group)
            x.fill_(-1)
            if pauses[call]:
                for _ in range(2000):
                    pass
            wrong += not torch.equal(y.view(torch.int32), results[call % 7].view(torch.int32))
    return wrong


@pytest.mark.parametrize(("ranks", "calls"), [(2, 10_000), (4, 2_000)])
def test_input_overwritten_after_each_call(pool: Pool, ranks: int, calls: int) -> None:
    assert pool.run(check_input_overwritten, ranks, "shm", calls, timeout=120) == [0] * ranks


def test_input_overwritten_after_each_call_over_torch(pool: Pool) -> None:
    assert pool.run(check_input_overwritten, 2, "torch", 200) == [0, 0]


def check_with_fault(context: Any, fault: str) -> int:
    with planted(fault):
        return check_input_overwritten(context, "shm", 500)


@pytest.mark.parametrize("fault", ["drop-wait", "early-signal", "flip-bit"])
def test_planted_fault_is_noticed(pool: Pool, fault: str) -> None:
    """Negative controls of the test above."""
    assert sum(pool.run(check_with_fault, 2, fault)) > 0


def check_misplaced(context: Any) -> None:
    with group_of(context, "shm") as group:
        exchange = Exchange((1, 4, 4, 8))
        whole = coded(exchange.sizes)
        got = fast_ulysses.a2a(exchange.input(whole.flip(1), group), group)
        with pytest.raises(AssertionError, match=r"misplaced: .* elements differ"):
            assert_bits(got, exchange.result(whole, group), "misplaced")


def test_comparison_sees_misplaced_rows(pool: Pool) -> None:
    """Negative control of the comparison."""
    pool.run(check_misplaced, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_coded_tensors_tell_positions_apart(dtype: torch.dtype) -> None:
    whole = coded((2, 8, 6, 16), dtype)
    for dim in range(4):
        assert not same_bits(whole, whole.roll(1, dim))
    assert not same_bits(whole, whole.transpose(1, 2).reshape(whole.shape))
    if dtype.itemsize >= 4:
        assert whole.view({4: torch.int32, 8: torch.int64}[dtype.itemsize]).unique().numel() == whole.numel()
