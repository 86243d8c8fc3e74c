"""Gradients: the inverse exchange, compared with one process that holds the whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fast_ulysses
import pytest
import torch
import torch.distributed as dist
from coded import Exchange, assert_bits, coded, group_of, moved
from fast_ulysses import Group, InvalidArgument
from launcher import Pool
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """Small enough that sums of products are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of [B, S, H, D]; k and v may have fewer heads."""
    k, v = (t.repeat_interleave(q.size(2) // t.size(2), 2) for t in (k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2)


# A layer of attention, against one process

SIX_TOKENS = Exchange((1, 6, 4, 8), gather_splits=(4, 2))


def check_attention(context: Any, transport: str) -> None:
    """Six tokens as [4, 2] over two ranks, in float64."""
    with group_of(context, transport) as group:
        q, k, v = (numbers(SIX_TOKENS.sizes, torch.float64, seed).requires_grad_() for seed in range(3))
        weight = numbers(SIX_TOKENS.sizes, torch.float64, 3)
        whole = attention(q, k, v)
        whole.backward(weight)

        mine = [SIX_TOKENS.input(t.detach(), group).clone().requires_grad_() for t in (q, k, v)]
        inside = fast_ulysses.a2a_qkv(*mine, group, **SIX_TOKENS.arguments())
        out = fast_ulysses.a2a(attention(*inside), group, **SIX_TOKENS.inverse().arguments())
        torch.testing.assert_close(out, SIX_TOKENS.input(whole, group), rtol=1e-12, atol=1e-12)
        there, back = (e.peer_bytes(q.dtype, group) for e in (SIX_TOKENS, SIX_TOKENS.inverse()))
        with moved(group, there + 3 * back, calls=2):
            out.backward(SIX_TOKENS.input(weight, group))
        for got, expected in zip(mine, (q, k, v), strict=True):
            assert got.grad is not None
            assert expected.grad is not None
            torch.testing.assert_close(got.grad, SIX_TOKENS.input(expected.grad, group), rtol=1e-12, atol=1e-12)


def test_attention_equals_one_process(pool: Pool, transport: str) -> None:
    pool.run(check_attention, 2, transport)


# gradcheck. Each rank perturbs its own input only, at the same time as the others, and what it then sees mixes the
# perturbations of all. So the check runs on a function that is the same on all ranks: the whole tensor goes in, and the
# results of all ranks come out. `_Enter` and `_Leave` are the two ends, and each one's gradient is the other's mirror.


class _Enter(torch.autograd.Function):
    """A tensor that all ranks hold alike, into what each computes; the gradients of all ranks add up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pg: Any) -> torch.Tensor:
        ctx.pg = pg
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Sum.apply(grad, ctx.pg), None  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pg: Any) -> torch.Tensor:
        ctx.pg = pg
        total = x.clone()
        dist.all_reduce(total, group=pg)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Enter.apply(grad, ctx.pg), None  # type: ignore[no-untyped-call]


class _Leave(torch.autograd.Function):
    """The flat results of all ranks, one behind the other, the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, counts: list[int], pg: Any) -> torch.Tensor:
        ctx.counts, ctx.pg = counts, pg
        parts = [x.new_zeros(max(counts)) for _ in counts]
        padded = x.new_zeros(max(counts))
        padded[: x.numel()] = x
        dist.all_gather(parts, padded, group=pg)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Own.apply(grad, ctx.counts, ctx.pg), None, None  # type: ignore[no-untyped-call]


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, counts: list[int], pg: Any) -> torch.Tensor:
        ctx.counts, ctx.pg = counts, pg
        return x.split(counts)[pg.rank()].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Leave.apply(grad, ctx.counts, ctx.pg), None, None  # type: ignore[no-untyped-call]


def over_all_ranks(context: Any, local: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def function(*wholes: torch.Tensor) -> torch.Tensor:
        mine = local(*(_Enter.apply(whole, context.pg) for whole in wholes)).flatten()  # type: ignore[no-untyped-call]
        counts: list[Any] = [None] * context.size
        dist.all_gather_object(counts, mine.numel(), group=context.pg)
        result: torch.Tensor = _Leave.apply(mine, counts, context.pg)  # type: ignore[no-untyped-call]
        return result

    return function


def check_gradcheck(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        exchange = Exchange((1, 3, 4, 2), scatter_splits=(3, 1), gather_splits=(2, 1))

        def one(whole: torch.Tensor) -> torch.Tensor:
            return fast_ulysses.a2a(exchange.input(whole, group), group, **exchange.arguments()) ** 2

        def three(*wholes: torch.Tensor) -> torch.Tensor:
            splits = {"scatter_splits": [3, 1], "gather_splits": [2, 1]}  # rank 0 has all of the kv head
            mine = [exchange.input(whole, group) for whole in wholes]
            q, k, v = fast_ulysses.a2a_qkv(*mine, group, **splits)
            return (q.sum(2, keepdim=True) * k).sin() * v

        def single(whole: torch.Tensor) -> torch.Tensor:
            return fast_ulysses.all_to_all_single(whole[group.rank], group) ** 3

        x = numbers(exchange.sizes, torch.float64).requires_grad_()
        kv = [numbers((1, 3, 1, 2), torch.float64, seed).requires_grad_() for seed in (2, 3)]
        parts = numbers((2, 4, 1), torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(over_all_ranks(context, one), (x,))
        assert torch.autograd.gradcheck(over_all_ranks(context, three), (x, *kv))
        assert torch.autograd.gradcheck(over_all_ranks(context, single), (parts,))
        assert torch.autograd.gradgradcheck(over_all_ranks(context, single), (parts,))
        small = Exchange((1, 2, 2, 1), gather_splits=(1, 1))
        assert torch.autograd.gradgradcheck(
            over_all_ranks(context, lambda w: fast_ulysses.a2a(small.input(w, group), group) ** 3),
            (numbers(small.sizes, torch.float64).requires_grad_(),),
        )


def test_gradcheck(pool: Pool, transport: str) -> None:
    pool.run(check_gradcheck, 2, transport, timeout=120)


# Fewer kv heads than query heads


def check_replicated_heads(context: Any, transport: str) -> None:
    """32 query heads and 2 kv heads over 8 ranks: rank r has query heads 4r to 4r+3 and kv head r // 4."""
    with group_of(context, transport) as group:
        r, N, D = group.rank, 16, 8
        tokens = slice(2 * r, 2 * r + 2)
        q, k, v = (numbers((1, N, heads, D), torch.float32, heads + s) for s, heads in enumerate((32, 2, 2)))
        weight = numbers((1, N, 32, D), torch.float32, 9)
        mine = [t[:, tokens].clone().requires_grad_() for t in (q, k, v)]
        heads_q, heads_k, heads_v = fast_ulysses.a2a_qkv(*mine, group)
        assert_bits(heads_q, q[:, :, 4 * r : 4 * r + 4], "q")
        assert_bits(heads_k, k[:, :, r // 4 : r // 4 + 1], "k")
        assert_bits(heads_v, v[:, :, r // 4 : r // 4 + 1], "v")
        out = fast_ulysses.a2a(attention(heads_q, heads_k, heads_v), group, 1, 2)
        out.backward(weight[:, tokens])

        whole = [t.clone().requires_grad_() for t in (q, k, v)]
        expected = attention(*whole)
        expected.backward(weight)
        torch.testing.assert_close(out, expected[:, tokens])
        for got, of_whole in zip(mine, whole, strict=True):
            assert got.grad is not None
            assert of_whole.grad is not None
            torch.testing.assert_close(got.grad, of_whole.grad[:, tokens])


def test_a_kv_head_that_several_ranks_need(pool: Pool, transport: str) -> None:
    pool.run(check_replicated_heads, 8, transport)


def check_exact_gradients(context: Any, transport: str, q_heads: int, kv_heads: int, splits: list[int] | None) -> None:
    """Whole numbers, so that dq, dk and dv are exactly those of one process: each replica counts once."""
    with group_of(context, transport) as group:
        N, D = 2 * group.size + 1, 4
        tokens = fast_ulysses.balanced_split(N, group.size)
        exchange = Exchange((2, N, q_heads, D), 2, 1, None if splits is None else tuple(splits), tuple(tokens))
        numbers_of_heads = (q_heads, kv_heads, kv_heads)
        q, k, v = (integers((2, N, heads, D), torch.float32, s) for s, heads in enumerate(numbers_of_heads))
        weight = integers(exchange.sizes, torch.float32, 3)
        mine = [exchange.input(t, group).clone().requires_grad_() for t in (q, k, v)]
        heads = fast_ulysses.a2a_qkv(*mine, group, **exchange.arguments())
        first = sum(exchange.parts(2, exchange.scatter_splits, group.size)[: group.rank])
        count = exchange.parts(2, exchange.scatter_splits, group.size)[group.rank]
        per_kv = q_heads // kv_heads
        start, stop = first // per_kv, -(-(first + count) // per_kv)
        assert_bits(heads[0], q[:, :, first : first + count], "q")
        assert_bits(heads[1], k[:, :, start:stop], "k")
        assert_bits(heads[2], v[:, :, start:stop], "v")
        of_kv = [(first + i) // per_kv - start for i in range(count)]
        (heads[0] * (heads[1][:, :, of_kv] - heads[2][:, :, of_kv]) * exchange.result(weight, group)).sum().backward()

        whole = [t.clone().requires_grad_() for t in (q, k, v)]
        wide_k, wide_v = (t.repeat_interleave(per_kv, 2) for t in whole[1:])
        (whole[0] * (wide_k - wide_v) * weight).sum().backward()
        for name, got, of_whole in zip("qkv", mine, whole, strict=True):
            assert got.grad is not None
            assert of_whole.grad is not None
            # Equal numbers: a sum may end in either zero.
            assert torch.equal(got.grad, exchange.input(of_whole.grad, group)), f"d{name}"


@pytest.mark.parametrize(
    ("ranks", "q_heads", "kv_heads", "splits"),
    [
        (2, 28, 7, [16, 12]),
        (2, 8, 8, [5, 3]),
        (2, 4, 1, None),
        (3, 6, 2, [2, 1, 3]),
        (3, 8, 2, [4, 0, 4]),
        (4, 8, 2, None),
    ],
)
def test_gradients_of_kv_heads_are_exact(
    pool: Pool, transport: str, ranks: int, q_heads: int, kv_heads: int, splits: list[int] | None
) -> None:
    pool.run(check_exact_gradients, ranks, transport, q_heads, kv_heads, splits)


def check_wire_bytes(context: Any) -> None:
    with group_of(context, "shm") as group:
        for q_heads, kv_heads, travelling in ((40, 8, 8), (32, 2, 8)):
            q, k = (coded((1, 2, heads, 16)) for heads in (q_heads, kv_heads))
            of_q, of_k = (
                Exchange((1, 2 * group.size, heads, 16)).peer_bytes(q.dtype, group) for heads in (q_heads, travelling)
            )
            with moved(group, of_q + 2 * of_k):
                fast_ulysses.a2a_qkv(q, k, k, group)


def test_kv_heads_travel_compact(pool: Pool) -> None:
    """40 query and 8 kv heads over 8 ranks: K costs 8 heads, not 40. With 2 kv heads each rank gets its one."""
    pool.run(check_wire_bytes, 8)


def check_replica_sums(context: Any, transport: str) -> None:
    """One kv head on four ranks, and gradients whose sum shows how it was made."""
    with group_of(context, transport) as group:
        cases = [
            # bfloat16 has a step of 2 above 256: added up in it, 256 + 1 + 1 + 1 stays 256.
            (torch.bfloat16, [256.0, 1.0, 1.0, 1.0], 260.0),
            (torch.float16, [2048.0, 1.0, 1.0, 1.0], 2052.0),
            # In rank order and float32, each 1 is lost; in another order 1 or 2 would be left.
            (torch.float32, [2.0**24, 1.0, 1.0, -(2.0**24)], 0.0),
            (torch.float64, [2.0**24, 1.0, 1.0, -(2.0**24)], 2.0),
        ]
        for dtype, grads, expected in cases:
            q = torch.zeros(1, 3, 4, 5, dtype=dtype, requires_grad=True)
            k, v = (torch.zeros(1, 3, 1, 5, dtype=dtype, requires_grad=True) for _ in range(2))
            _, heads_k, heads_v = fast_ulysses.a2a_qkv(q, k, v, group)
            (heads_k * grads[group.rank] - heads_v * grads[group.rank]).sum().backward()
            assert k.grad is not None
            assert v.grad is not None
            assert q.grad is not None
            assert k.grad.unique().tolist() == [expected], dtype
            assert v.grad.unique().tolist() == [-expected], dtype
            assert not q.grad.any()  # nothing was made of q


def test_replicas_are_summed_wide_in_rank_order_and_rounded_once(pool: Pool, transport: str) -> None:
    pool.run(check_replica_sums, 4, transport)


def check_cut_heads(context: Any, transport: str) -> list[str]:
    texts = []
    with group_of(context, transport) as group:
        q, k = torch.ones(1, 4, 12, 8), torch.ones(1, 4, 4, 8)
        for kv, splits in ((k, None), (k, [5, 4, 3]), (torch.ones(1, 4, 5, 8), None), (k[:, :, :0], None)):
            with pytest.raises(InvalidArgument) as caught:
                fast_ulysses.a2a_qkv(q, kv, kv, group, scatter_splits=splits)
            texts.append(str(caught.value))
        with pytest.raises(InvalidArgument) as caught:
            fast_ulysses.a2a_qkv(q[:, :, :10], k[:, :, :2], k[:, :, :2], group)
        texts.append(str(caught.value))
        assert group.stats()["calls"] == 0
        assert fast_ulysses.a2a_qkv(q, k, k, group, scatter_splits=[6, 3, 3])[1].size(2) == (2, 1, 1)[group.rank]
    return texts


def test_query_heads_that_cut_through_a_kv_head(pool: Pool) -> None:
    """The text names what would work, alike on all ranks and both paths."""
    answers = [texts for transport in ("shm", "torch") for texts in pool.run(check_cut_heads, 3, transport)]
    assert all(texts == answers[0] for texts in answers)
    even, given, odd, none, indivisible = answers[0]
    for text in (even, given):
        assert "cut through a kv head" in text
        assert "[6, 3, 3]" in text
        assert "2, 4, 12 ranks" in text
    assert "12 query heads do not divide by 5 kv heads" in odd
    assert "0 kv heads" in none
    assert "10 query heads do not divide by 3 ranks; use one of 2, 10 ranks" in indivisible


def check_one_of_three(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        q, k, v = (torch.ones(1, 2, heads, 4) for heads in (4, 2, 2))
        v.requires_grad_()
        heads_q, heads_k, heads_v = fast_ulysses.a2a_qkv(q, k, v, group)
        (heads_q.sum() * heads_k.sum() * heads_v).sum().backward()
        assert q.grad is None
        assert k.grad is None
        assert v.grad is not None
        with pytest.raises(InvalidArgument, match="differentiable once"):
            torch.autograd.grad(fast_ulysses.a2a_qkv(q, k, v, group)[2].pow(2).sum(), v, create_graph=True)


def test_only_v_needs_grad(pool: Pool, transport: str) -> None:
    pool.run(check_one_of_three, 2, transport)


# What else goes with gradients


def check_strides(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        base = torch.ones(2, 4, 6, 2, 8, requires_grad=True)
        for x in (base[:, :, :, 0], base[:, :, :, 0].transpose(1, 2), base[:1, :, :, 0].expand(3, 4, 6, 8)):
            kv = x[:, :, :2]
            calls: list[Callable[[], Any]] = [
                lambda x=x: [fast_ulysses.a2a(x, group)],
                lambda x=x, kv=kv: fast_ulysses.a2a_qkv(x, kv, kv, group),
                lambda x=x: [fast_ulysses.all_to_all_single(x.transpose(0, 2), group)],
            ]
            for call in calls:
                with_grad = call()
                with torch.no_grad():
                    without = call()
                assert all(t.requires_grad and t.grad_fn is not None for t in with_grad)
                assert not any(t.requires_grad for t in without)
                assert [t.stride() for t in with_grad] == [t.stride() for t in without]


def test_strides_are_the_same_with_grad_on_and_off(pool: Pool, transport: str) -> None:
    pool.run(check_strides, 2, transport)


LAYERS = Exchange((2, 10, 6, 8), scatter_splits=(4, 2), gather_splits=(3, 7))


def layers(x: torch.Tensor, group: Group | None, count: int, again: bool) -> torch.Tensor:
    """Element by element, so that the result over ranks is that of one process to the bit; group None: one process.

    Gradients are added up in another order, and equal those of one process up to rounding.
    """

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = x if group is None else fast_ulysses.a2a(x, group, **LAYERS.arguments())
        y = (y * y + y) / 2
        y = y if group is None else fast_ulysses.a2a(y, group, **LAYERS.inverse().arguments())
        return y - x * y / 4

    for _ in range(count):
        x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
    return x


def check_layers(context: Any, transport: str, again: bool) -> None:
    with group_of(context, transport) as group:
        whole = numbers(LAYERS.sizes, torch.float64).requires_grad_()
        weight = numbers(LAYERS.sizes, torch.float64, 2)
        expected = layers(whole, None, 3, False)
        expected.backward(weight)
        x = LAYERS.input(whole.detach(), group).clone().requires_grad_()
        before = group.stats()["calls"]
        y = layers(x, group, 3, again)
        y.backward(LAYERS.input(weight, group))
        assert group.stats()["calls"] - before == (6 + 6 + 6 if again else 6 + 6)
        assert_bits(y.detach(), LAYERS.input(expected.detach(), group), "three layers")
        assert x.grad is not None
        assert whole.grad is not None
        torch.testing.assert_close(x.grad, LAYERS.input(whole.grad, group), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "checkpoint"])
def test_backward_through_three_layers(pool: Pool, transport: str, again: bool) -> None:
    pool.run(check_layers, 2, transport, again)


def check_changed_in_place(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        for tokens in (4, 2048):  # 2 MiB for the larger
            x = torch.ones(1, tokens, 2 * group.size, 64, requires_grad=True)
            for call in (
                lambda x: fast_ulysses.a2a(x, group),
                lambda x: fast_ulysses.a2a_qkv(x, x, x, group)[1],
                lambda x: fast_ulysses.all_to_all_single(x.transpose(0, 2), group),
            ):
                x.grad = None
                y = call(x)
                y.mul_(3).add_(1)
                y.sum().backward()
                assert y.unique().tolist() == [4.0]
                assert x.grad is not None
                assert x.grad.unique().tolist() == [3.0]
            y = fast_ulysses.a2a(x, group)
            z = y.pow(2)
            y.add_(1)  # y is needed for the gradient of z
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.sum().backward()


def test_a_result_may_be_changed_in_place(pool: Pool, transport: str) -> None:
    pool.run(check_changed_in_place, 2, transport)
