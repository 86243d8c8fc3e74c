"""Wrong arguments: every rank raises alike, before anything is sent, and the group works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import Exchange, assert_bits, coded, exchange_checked, group_of
from fast_ulysses import InvalidArgument, StateError
from launcher import Pool

ops = torch.ops.fast_ulysses


def refused(call: Callable[[], Any], *words: str) -> str:
    """The text of the InvalidArgument that the call raises; it has to hold all the words."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    return text


def check_heads_that_do_not_divide(context: Any, transport: str, heads: int) -> str:
    with group_of(context, transport) as group:
        x = coded((1, 16, heads, 128))
        text = refused(lambda: fast_ulysses.a2a(x, group), str(heads), f"{group.size} ranks", "scatter_splits")
        assert group.stats()["calls"] == 0
        group.check()
        exchange_checked(group, Exchange((1, 16, 2 * group.size, 8)))
        return text


@pytest.mark.parametrize(("heads", "ranks"), [(30, 4), (28, 8)])
def test_heads_that_do_not_divide(pool: Pool, heads: int, ranks: int) -> None:
    texts = {
        text
        for transport in ("shm", "torch")
        for text in pool.run(check_heads_that_do_not_divide, ranks, transport, heads)
    }
    assert len(texts) == 1  # the same on all ranks and on both paths
    legal = {n for n in range(1, heads + 1) if heads % n == 0}
    named = {int(word.strip(",.")) for word in texts.pop().split() if word.strip(",.").isdigit()}
    assert named & legal


def check_wrong_arguments(context: Any, transport: str) -> list[str]:
    with group_of(context, transport) as group:
        P = group.size
        x = coded((1, 4, 2 * P, 8))
        even = [2] * P
        texts = [
            refused(lambda: fast_ulysses.a2a(x, group, 2, 2), "2"),
            refused(lambda: fast_ulysses.a2a(x, group, 3, 1), "3"),
            refused(lambda: fast_ulysses.a2a(x, group, 2, -1), "gather_dim"),
            refused(lambda: fast_ulysses.a2a(x, group, 7, 1), "7"),
            refused(lambda: fast_ulysses.a2a(x[0, 0], group, 0, 1), "2"),
            refused(lambda: fast_ulysses.a2a(x[None, None], group, 2, 1), "6"),
            refused(lambda: fast_ulysses.a2a(x, group, scatter_splits=[*even, 0]), str(P + 1)),
            refused(lambda: fast_ulysses.a2a(x, group, scatter_splits=[*even[:-1], 3]), str(2 * P)),
            refused(lambda: fast_ulysses.a2a(x, group, scatter_splits=[*even[:-2], 5, -1]), "-1"),
            refused(lambda: fast_ulysses.a2a(x, group, gather_splits=[4] * (P + 1)), str(P + 1)),
            refused(lambda: fast_ulysses.a2a_qkv(x, x, x[:, :, :-1], group), str(2 * P - 1)),
            refused(lambda: fast_ulysses.all_to_all_single(coded((2 * P + 1, 3)), group), str(2 * P + 1), f"{P} ranks"),
            refused(lambda: fast_ulysses.all_to_all_single(torch.tensor(1.0), group), "dim 0"),
        ]
        refused(lambda: fast_ulysses.a2a(x, group, gather_splits=[4] * context.rank + [5] * (P - context.rank)), "4")
        assert group.stats()["calls"] == 0
        exchange_checked(group, Exchange((1, 4 * P, 2 * P, 8)))
        return texts


def test_wrong_arguments(pool: Pool) -> None:
    native, over_torch = (pool.run(check_wrong_arguments, 2, transport) for transport in ("shm", "torch"))
    assert native[0] == native[1] == over_torch[0] == over_torch[1]


def check_tensors_that_cannot_be_moved(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        x = torch.ones(1, 4, 2 * group.size, 8)
        refused(lambda: fast_ulysses.a2a(x.to(torch.complex128), group), "complex128", "view_as_real")
        refused(lambda: fast_ulysses.a2a(x.to_sparse(), group), "sparse")
        quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
        refused(lambda: fast_ulysses.a2a(quantized, group), "quantized")
        assert group.stats()["calls"] == 0
        numbers = coded((1, 4 * group.size, 2 * group.size, 8), torch.complex64)
        exchange = Exchange(tuple(numbers.shape))
        for view in (numbers.conj(), numbers.conj().imag):  # lazily conjugated, lazily negated
            got = fast_ulysses.a2a(exchange.input(view, group), group)
            assert_bits(got, exchange.result(view.resolve_conj().resolve_neg(), group), "a lazy view")


def test_tensors_that_cannot_be_moved(pool: Pool, transport: str) -> None:
    pool.run(check_tensors_that_cannot_be_moved, 2, transport)


def check_out(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        P = group.size
        exchange = Exchange((2, 4 * P, 2 * P, 8))
        whole = coded(exchange.sizes)
        x, expected = exchange.input(whole, group), exchange.result(whole, group)
        for out in (
            torch.empty_like(expected),
            torch.empty(expected.transpose(1, 2).shape, dtype=x.dtype).transpose(1, 2),
            torch.empty(2, 4 * P, 3, 2, 8, dtype=x.dtype)[:, :, 1],
            torch.empty(2, 4 * P, 2, 16, dtype=x.dtype)[..., ::2],
            group.empty(expected.shape, x.dtype),
        ):
            version = out._version
            assert fast_ulysses.a2a(x, group, out=out) is out
            assert out._version > version
            assert_bits(out, expected, f"out of strides {out.stride()}")
            assert ops.a2a_out(x.flip(0), group.handle, out=out) is None
            assert_bits(out, expected.flip(0), "again")
        calls = group.stats()["calls"]
        good = torch.empty_like(expected)
        refused(
            lambda: fast_ulysses.a2a(x, group, out=good[:, 1:]), str(list(good.shape)), str(list(good[:, 1:].shape))
        )
        refused(lambda: fast_ulysses.a2a(x, group, out=good.view(torch.float16)), "float16", "bfloat16")
        refused(lambda: fast_ulysses.a2a(x, group, out=good.to("meta")), "meta")
        refused(lambda: fast_ulysses.a2a(x, group, out=good[:1].expand_as(good)), "share memory")
        overlapping = good.as_strided(good.shape, (8, 16, 8, 1))
        refused(lambda: fast_ulysses.a2a(x, group, out=overlapping), "share memory")
        refused(
            lambda: fast_ulysses.a2a(x, group, out=x.view(expected.shape) if P == 1 else alias_of(x)), "same memory"
        )
        assert group.stats()["calls"] == calls
        exchange_checked(group, exchange)


def alias_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the result's shape that begins inside of x."""
    B, s, H, D = x.shape
    storage = x.untyped_storage()
    flat = torch.tensor([], dtype=x.dtype).set_(storage)
    parts = x.size(2) // 2
    return flat[: B * s * parts * (H // parts) * D].view(B, s * parts, H // parts, D)


@pytest.mark.parametrize("ranks", [1, 2])
def test_out(pool: Pool, transport: str, ranks: int) -> None:
    pool.run(check_out, ranks, transport)


def check_grad_is_refused(context: Any, transport: str) -> None:
    with group_of(context, transport) as group:
        x = torch.ones(1, 4, 2 * group.size, 8, requires_grad=True)
        plain = x.detach()
        out = torch.empty(1, 4 * group.size, 2, 8)
        parts = x.view(2 * group.size, -1)
        refused(lambda: group.all_to_all_single(parts, async_op=True), "grad", "fast_ulysses.all_to_all_single")
        refused(lambda: group.all_to_all_single(parts), "grad")
        refused(lambda: fast_ulysses.a2a(x, group, out=out), "out=")
        refused(lambda: fast_ulysses.a2a(plain, group, out=out.clone().requires_grad_()), "out=")
        refused(lambda: fast_ulysses.unshard(x, group), "grad")
        assert group.stats()["calls"] == 0
        with torch.no_grad():
            assert not fast_ulysses.a2a(x, group).requires_grad
            assert not group.all_to_all_single(parts)[0].requires_grad
            fast_ulysses.a2a(x, group, out=out)
        with torch.inference_mode():
            fast_ulysses.a2a(x, group)


def test_an_input_that_needs_grad_is_refused_where_it_would_be_dropped(pool: Pool, transport: str) -> None:
    """`out=` and a Work cannot carry a gradient, and never is one dropped in silence."""
    pool.run(check_grad_is_refused, 2, transport)


def check_handles(context: Any, transport: str) -> None:
    x = coded((1, 4, 2 * context.size, 8))
    with group_of(context, transport, name="layer") as group:
        handle = group.handle
        assert handle.startswith(f"layer/{context.rank}of{context.size}#")
        assert_bits(ops.a2a(x, handle), fast_ulysses.a2a(x, group))
        with pytest.raises(StateError, match=r"never made .* by init_group"):
            ops.a2a(x, f"layer/{context.rank}of{context.size}#1000000")
        with pytest.raises(StateError, match="not a group handle"):
            ops.a2a(x, "layer")
    for call in (lambda: ops.a2a(x, handle), lambda: fast_ulysses.a2a(x, group), group.check, group.trim):
        with pytest.raises(StateError, match=r"'layer' .* was destroyed"):
            call()
    group.destroy()
    with group_of(context, transport, name="layer") as second:
        assert second.handle != handle
        with pytest.raises(StateError, match="was destroyed"):
            ops.a2a(x, handle)


def test_handles(pool: Pool, transport: str) -> None:
    pool.run(check_handles, 2, transport)


def check_plan_memory(context: Any) -> None:
    with group_of(context, "torch") as group:
        for length in range(1, 1200):
            fast_ulysses.a2a(torch.zeros(1, length, context.size, 1), group)
        assert len(group.plans) == 1024


def test_plans_kept_are_bounded(pool: Pool) -> None:
    pool.run(check_plan_memory, 1)
