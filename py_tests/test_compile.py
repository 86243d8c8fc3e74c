"""torch.compile, shape inference and the checks of torch.library, over ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_ulysses
import pytest
import torch
from coded import Exchange, assert_bits, coded, group_of
from fast_ulysses import Group, InvalidArgument
from launcher import Pool, Report
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

Launch = Callable[..., list[Report]]
ops = torch.ops.fast_ulysses


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Counting:
    """A backend of torch.compile that counts the graphs it is given."""

    def __init__(self, backend: str) -> None:
        self.graphs = 0
        self._backend = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._backend(graph, inputs, **options)


def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, handle: str) -> torch.Tensor:
    """Heads out, attention, heads back."""
    inside = ops.a2a_qkv(q, k, v, handle)
    out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in inside)).transpose(1, 2)
    result: torch.Tensor = ops.a2a(out, handle, 1, 2)
    return result


# A layer of attention


def check_layer(context: Any, transport: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    with group_of(context, transport) as group:
        counting = Counting(backend)
        compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=counting)
        for N in (256, 320, 512):
            qkv = [numbers((1, N // group.size, 4, 16), N + seed + 10 * group.rank) for seed in range(3)]
            before = group.stats()["calls"]
            got = compiled(*qkv, group.handle)
            assert group.stats()["calls"] - before == 2
            assert_bits(got, layer(*qkv, group.handle), f"{N} tokens")
        assert counting.graphs <= (2 if dynamic else 3)


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_a_layer_in_one_graph(pool: Pool, transport: str, dynamic: bool) -> None:
    pool.run(check_layer, 2, transport, "aot_eager", dynamic, timeout=120)


def front(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group) -> torch.Tensor:
    inside = fast_ulysses.a2a_qkv(q, k, v, group)
    parts = fast_ulysses.all_to_all_single(inside[0].transpose(0, 1), group).transpose(0, 1)
    return fast_ulysses.a2a(parts + inside[1] * inside[2], group, scatter_dim=1, gather_dim=2)


def check_fronts(context: Any) -> None:
    torch._dynamo.reset()
    with group_of(context, "shm") as group:
        qkv = [numbers((1, 6, 4, 16), seed + 10 * group.rank) for seed in range(3)]
        compiled = torch.compile(front, fullgraph=True, backend="aot_eager")
        assert_bits(compiled(*qkv, group), front(*qkv, group))


def test_the_functions_with_a_group_object(pool: Pool) -> None:
    pool.run(check_fronts, 2, timeout=120)


# Training: several layers, uneven shards


UNEVEN = Exchange((1, 10, 6, 8), scatter_splits=(4, 2), gather_splits=(3, 7))


def layers(x: torch.Tensor, handle: str, count: int, again: bool = False) -> torch.Tensor:
    def one(x: torch.Tensor) -> torch.Tensor:
        y = ops.a2a(x, handle, 2, 1, [4, 2], [3, 7])
        y = (y * y + y) / 2
        result: torch.Tensor = ops.a2a(y, handle, 1, 2, [3, 7], [4, 2])
        return result - x / 4

    for _ in range(count):
        x = checkpoint(one, x, use_reentrant=False) if again else one(x)
    return x


def trained(function: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    y = function(leaf, *args)
    y.backward(numbers(tuple(y.shape), 5))
    assert leaf.grad is not None
    return y.detach(), leaf.grad


def check_layers(context: Any, transport: str) -> None:
    torch._dynamo.reset()
    with group_of(context, transport) as group:
        x = UNEVEN.input(numbers(UNEVEN.sizes, 1), group)
        compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
        assert_bits(compiled(x, group.handle, 2), layers(x, group.handle, 2), "two layers")
        expected = trained(layers, x, group.handle, 3)
        for again in (False, True):
            got = trained(compiled, x, group.handle, 3, again)
            assert_bits(got[0], expected[0], "three layers")
            assert_bits(got[1], expected[1], "backward through three layers")


def test_layers_and_backward(pool: Pool, transport: str) -> None:
    pool.run(check_layers, 2, transport, timeout=120)


def kv_layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, handle: str) -> torch.Tensor:
    a, b, c = ops.a2a_qkv(q, k, v, handle)
    return (a.sum(2, keepdim=True) * b * c).sum()


def check_kv(context: Any, transport: str) -> None:
    torch._dynamo.reset()
    with group_of(context, transport) as group:
        compiled = torch.compile(kv_layer, fullgraph=True, backend="aot_eager")
        q, k, v = (numbers((1, 3, heads, 8), heads + group.rank) for heads in (8, 1, 1))
        grads = []
        for function in (kv_layer, compiled):
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            function(*leaves, group.handle).backward()
            grads.append([t.grad for t in leaves])
        for got, expected in zip(*grads, strict=True):
            assert_bits(got, expected, "the gradient of heads that both ranks need")


def test_replicated_heads(pool: Pool, transport: str) -> None:
    pool.run(check_kv, 2, transport, timeout=120)


def three_apart(xs: list[torch.Tensor], handle: str, splits: list[list[int]]) -> list[torch.Tensor]:
    """Nothing but the program says in which order these go."""
    ys = [ops.a2a(x, handle, 2, 1, None, s) for x, s in zip(xs, splits, strict=True)]
    return [ops.a2a(y * (i + 1), handle, 1, 2, s, None) for i, (y, s) in enumerate(zip(ys, splits, strict=True))]


def check_three_apart(context: Any, transport: str, backend: str) -> None:
    torch._dynamo.reset()
    with group_of(context, transport, timeout=60) as group:
        splits = [[1, 31], [20, 3], [400, 2]]  # which exchange is the largest differs from rank to rank
        xs = [numbers((1, s[group.rank], 4, 8), i + 10 * group.rank) for i, s in enumerate(splits)]
        compiled = torch.compile(three_apart, fullgraph=True, backend=backend)
        for _ in range(2):
            for i, (got, x) in enumerate(zip(compiled(xs, group.handle, splits), xs, strict=True)):
                assert_bits(got, x * (i + 1), f"exchange {i}")

        def loss(xs: list[torch.Tensor]) -> torch.Tensor:
            total = torch.zeros(())
            for i, y in enumerate(three_apart(xs, group.handle, splits)):
                total = total + (y * y).sum() * (i + 1)
            return total

        leaves = [x.clone().requires_grad_() for x in xs]
        torch.compile(loss, fullgraph=True, backend=backend)(leaves).backward()
        for i, (leaf, x) in enumerate(zip(leaves, xs, strict=True)):
            torch.testing.assert_close(leaf.grad, 2 * x * (i + 1) ** 3)


def test_independent_exchanges(pool: Pool, transport: str) -> None:
    pool.run(check_three_apart, 2, transport, "aot_eager", timeout=120)


# Inductor, with a cache that the ranks share


def check_inductor(context: Any, transport: str) -> None:
    check_three_apart(context, transport, "inductor")
    torch._dynamo.reset()
    with group_of(context, transport, name="layer", timeout=60) as group:

        def uneven(x: torch.Tensor) -> torch.Tensor:
            y = ops.a2a(x.sin(), group.handle, 2, 1, [3, 1], [5, 4])
            result: torch.Tensor = ops.a2a(y * 2, group.handle, 1, 2, [5, 4], [3, 1])
            return result + 1

        compiled = torch.compile(uneven, fullgraph=True, backend="inductor")
        for seed in range(2):
            x = numbers((1, (5, 4)[group.rank], 4, 8), seed + 10 * group.rank)
            torch.testing.assert_close(compiled(x), uneven(x))


def test_inductor_with_one_cache_for_all_ranks(launch: Launch, tmp_path: Path) -> None:
    """Ranks differ in the sizes of their results and share every compiled artefact that they may."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    launch(check_inductor, 2, "shm", env=env, timeout=150)
    assert any(tmp_path.iterdir())


# Shapes without a group, and the checks of torch.library


def test_shapes_need_no_group() -> None:
    """From the handle alone: neither a group nor torch.distributed is there."""
    handle = "elsewhere/1of3#7"
    cases: list[tuple[str, tuple[Any, ...], list[tuple[int, ...]]]] = [
        ("a2a", ((2, 4, 6, 8), handle), [(2, 12, 2, 8)]),
        ("a2a", ((2, 9, 2, 8), handle, 1, 2), [(2, 3, 6, 8)]),
        ("a2a", ((2, 4, 7, 8), handle, -2, -3, [3, 3, 1], [5, 4, 1]), [(2, 10, 3, 8)]),
        ("a2a", ((2, 4, 2, 8), handle, 2, 1, [1, 0, 1]), [(2, 12, 0, 8)]),
        ("a2a_qkv", ((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8), handle), [(2, 12, 2, 8)] * 3),
        ("a2a_qkv", ((2, 4, 6, 8), (2, 4, 1, 8), (2, 4, 1, 8), handle), [(2, 12, 2, 8), *[(2, 12, 1, 8)] * 2]),
        ("all_to_all_single", ((6, 5), handle), [(6, 5)]),
        (
            "a2a_qkv_backward",
            ((2, 12, 2, 8), (2, 12, 1, 8), (2, 12, 1, 8), handle, 2, 1, None, None, 6, 1),
            [(2, 4, 6, 8), *[(2, 4, 1, 8)] * 2],
        ),
    ]
    for name, args, shapes in cases:
        sizes = [arg for arg in args if isinstance(arg, tuple)]
        with FakeTensorMode():
            fake = [torch.empty(each, dtype=torch.bfloat16) for each in sizes]
        for tensors in ([torch.empty(each, dtype=torch.bfloat16, device="meta") for each in sizes], fake):
            got = getattr(ops, name)(*tensors, *args[len(sizes) :])
            results = [got] if isinstance(got, torch.Tensor) else list(got)
            assert [tuple(t.shape) for t in results] == shapes, (name, args)
            assert all(t.dtype is torch.bfloat16 and t.is_contiguous() for t in results)
            assert all(t.device == tensors[0].device for t in results)


def test_a_wrong_shape_is_refused_without_a_group() -> None:
    x = torch.empty(1, 4, 7, 8, device="meta")
    with pytest.raises(RuntimeError, match="7 does not divide by 3 ranks"):
        ops.a2a(x, "elsewhere/0of3#0")
    with pytest.raises(InvalidArgument):
        ops.a2a(x, "elsewhere/0of3#0", 2, 2)
    with pytest.raises(InvalidArgument):
        ops.a2a(x, "not a handle")
    with pytest.raises(RuntimeError, match="out has shape"):
        ops.a2a_out(x, "elsewhere/0of7#0", out=torch.empty(1, 4, 7, 8, device="meta"))
    kv = torch.empty(1, 4, 2, 8, device="meta")
    with pytest.raises(InvalidArgument, match="cut through a kv head"):
        ops.a2a_qkv(torch.empty(1, 4, 6, 8, device="meta"), kv, kv, "elsewhere/0of3#0")


def test_symbolic_shapes_stay_symbolic() -> None:
    graph = make_fx(lambda x: ops.a2a(x, "elsewhere/0of3#0"), tracing_mode="symbolic")(torch.empty(2, 5, 6, 8))
    (call,) = (node for node in graph.graph.nodes if "a2a" in str(node.target))
    x, y = call.args[0].meta["val"], call.meta["val"]
    assert isinstance(y.shape[1], torch.SymInt)
    assert str(y.shape[1]) == f"3*{x.shape[1]}"


def check_opcheck(context: Any, transport: str) -> None:
    torch._dynamo.reset()
    with group_of(context, transport) as group:
        exchange = Exchange((1, 5, 6, 4), scatter_splits=(4, 2), gather_splits=(3, 2))
        rank = group.rank
        x = exchange.input(numbers(exchange.sizes, 1), group).clone()
        q, k, v = (numbers((1, (3, 2)[rank], heads, 4), heads) for heads in (6, 3, 3))
        one = numbers((1, (3, 2)[rank], 1, 4), 4)
        splits = (2, 1, [4, 2], [3, 2])
        leaf = torch.Tensor.requires_grad_
        torch.library.opcheck(ops.a2a.default, (x, group.handle, *splits))
        torch.library.opcheck(ops.a2a.default, (leaf(x.clone()), group.handle, *splits))
        torch.library.opcheck(ops.a2a_qkv.default, (*map(leaf, (q, k, v)), group.handle, *splits))
        torch.library.opcheck(ops.a2a_qkv.default, (q.detach(), one, one.clone(), group.handle, *splits))
        torch.library.opcheck(ops.all_to_all_single.default, (leaf(numbers((4, 3), rank)), group.handle))
        out = torch.empty(1, 5, (4, 2)[rank], 4)
        torch.library.opcheck(ops.a2a_out.default, (x, group.handle, *splits), {"out": out})
        grads = [numbers((1, 5, heads, 4), heads) for heads in ((4, 2)[rank], (2, 1)[rank], (2, 1)[rank])]
        torch.library.opcheck(ops.a2a_qkv_backward.default, (*grads, group.handle, *splits, 6, 3))


def test_opcheck(pool: Pool, transport: str) -> None:
    pool.run(check_opcheck, 2, transport, timeout=120)


def check_out(context: Any) -> None:
    torch._dynamo.reset()
    with group_of(context, "shm") as group:
        exchange = Exchange((1, 8, 4, 16))
        whole = coded(exchange.sizes)

        def call(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            ops.a2a_out(x, group.handle, out=out)
            return out.view(torch.int16) + 1

        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        out = torch.empty_like(exchange.result(whole, group))
        got = compiled(exchange.input(whole, group), out)
        assert_bits(out, exchange.result(whole, group), "out")
        assert_bits(got, exchange.result(whole, group).contiguous().view(torch.int16) + 1, "what follows")


def test_out_in_a_graph(pool: Pool) -> None:
    pool.run(check_out, 2, timeout=120)
