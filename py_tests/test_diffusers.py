"""Models of diffusers over a group, against one process; and everything that has to raise instead."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from coded import group_of
from launcher import Pool

pytest.importorskip("diffusers", reason="needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'")

import fast_ulysses
import tiny_models
from fast_ulysses.integrations import diffusers as integration
from fast_ulysses.integrations._attention_route import Route
from fast_ulysses.integrations._token_ledger import TokenLedger
from fast_ulysses.integrations.diffusers import GroupExchange, parallelize
from fast_ulysses.timeline import Timeline
from tiny_models import TINY, Tiny

BAR, CONTROL_BAR = 1e-5, 1e-3


class LeftOut(GroupExchange):
    """The control: the right shapes, but what peers hold stays zero."""

    def __init__(self, group: Any) -> None:
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


def due_bytes(tiny: Tiny, rank: int, size: int) -> int:
    """What a rank sends in one forward, from the shapes."""
    heads = fast_ulysses.balanced_split(tiny.heads, size)
    tokens = [sum(parts) for parts in zip(*(fast_ulysses.balanced_split(n, size) for n in tiny.streams), strict=True)]
    inward = 3 * tokens[rank] * (tiny.heads - heads[rank])
    outward = (sum(tokens) - tokens[rank]) * heads[rank]
    return tiny.attentions * tiny.batch * (inward + outward) * tiny.head_dim * 4


def largest_difference(ours: tuple[torch.Tensor, ...], reference: tuple[torch.Tensor, ...]) -> float:
    assert [x.shape for x in ours] == [x.shape for x in reference]
    return max((x - y).abs().max().item() for x, y in zip(ours, reference, strict=True))


def check_model(context: Any, transport: str, name: str) -> None:
    tiny = TINY[name]
    model, inputs = tiny.model(), tiny.inputs()
    with torch.no_grad(), group_of(context, transport) as group:
        reference = model(**inputs, return_dict=False)
        timeline = Timeline()
        with parallelize(model, group, timeline=timeline):
            ours = model(**inputs, return_dict=False)
            stats = group.stats()
            again = model(**inputs, return_dict=False)
        with parallelize(model, group, exchange=LeftOut(group)):
            control = model(**inputs, return_dict=False)
        restored = model(**inputs, return_dict=False)
    assert largest_difference(ours, reference) <= BAR
    assert largest_difference(control, reference) > CONTROL_BAR
    assert all(torch.equal(x, y) for x, y in zip(ours, again, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(restored, reference, strict=True))
    assert group.transport == transport
    assert stats["native_bytes"] == (due_bytes(tiny, group.rank, group.size) if transport == "shm" else 0)
    assert stats["fallback_calls"] == (0 if transport == "shm" else 2 * tiny.attentions)
    names = [span.name for span in timeline.spans if span.name == integration.SPAN_SCATTER]
    assert len(names) == 2 * tiny.attentions


@pytest.mark.parametrize("name", TINY)
def test_three_ranks_equal_one_process(pool: Pool, transport: str, name: str) -> None:
    pool.run(check_model, 3, transport, name, timeout=180)


@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
def test_any_number_of_ranks(pool: Pool, ranks: int) -> None:
    """12 heads over 5 ranks and 45 tokens over 2, 4 are uneven; a group of one is a group too."""
    if ranks > 1:
        pool.run(check_model, ranks, "shm", "wan, odd tokens", timeout=180)
    else:
        pool.run(check_alone, 1, timeout=180)


def check_alone(context: Any) -> None:
    tiny = TINY["wan"]
    model, inputs = tiny.model(), tiny.inputs()
    with torch.no_grad(), group_of(context, "shm") as group:
        reference = model(**inputs, return_dict=False)
        with parallelize(model, group):
            ours = model(**inputs, return_dict=False)
    assert all(torch.equal(x, y) for x, y in zip(ours, reference, strict=True))


def check_disagreement(context: Any, transport: str) -> str:
    """Rank 1 has two latent frames, the others three."""
    model = TINY["wan"].model()
    inputs = TINY["wan"].inputs()
    if context.rank != 1:
        inputs["hidden_states"] = torch.cat([inputs["hidden_states"]] * 2, dim=2)[:, :, :3]
    with torch.no_grad():
        group = fast_ulysses.init_group(context.pg, transport=transport, name="disagreement")
        with parallelize(model, group), pytest.raises(fast_ulysses.CollectiveMismatch) as caught:
            model(**inputs)
        group.destroy()
    return str(caught.value)


def test_ranks_with_other_lengths_all_raise(pool: Pool, transport: str) -> None:
    for text in pool.run(check_disagreement, 3, transport, timeout=180):
        assert "[2, 36, 12, 16]" in text, text
        assert "[2, 54, 12, 16]" in text, text


# What follows needs no peers: it raises before anything is sent.


def lone_group(rank: int = 0, size: int = 2) -> Any:
    return SimpleNamespace(rank=rank, size=size, handle=f"lone/{rank}of{size}#0")


class Silent:
    """An exchange that must not be reached."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"{name} was called")


def spread(model: torch.nn.Module, **options: Any) -> Any:
    return parallelize(model, lone_group(), exchange=Silent(), **options)


def wan() -> torch.nn.Module:
    return TINY["wan"].model()


def test_a_mask_is_refused() -> None:
    mask = torch.tensor([[True] * 5 + [False] * 2])
    model = TINY["qwen"].model()
    with torch.no_grad(), spread(model), pytest.raises(fast_ulysses.InvalidArgument, match="mask"):
        model(**tiny_models.qwen_inputs(7, mask))


def test_sharded_cross_attention_is_refused() -> None:
    model = tiny_models.ltx()
    with torch.no_grad(), spread(model), pytest.raises(fast_ulysses.InvalidArgument, match="cannot be spread"):
        model(**tiny_models.ltx_inputs())


def test_gradients_are_refused() -> None:
    model = wan()
    with spread(model), pytest.raises(fast_ulysses.InvalidArgument, match="no_grad"):
        model(**TINY["wan"].inputs())


def attend(handle: Any, *, heads: int = 4, kv_heads: int = 4, **options: Any) -> Any:
    """One attention as a processor calls it, over 5 tokens of which this rank has 3."""
    query, key = torch.zeros(1, 3, heads, 8), torch.zeros(1, 3, kv_heads, 8)
    return handle._attend(lambda *_, **__: pytest.fail("attention was called"), query, key, key, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dropout_p": 0.1}, "dropout_p=0.1"),
        ({"kv_heads": 2}, "4 query heads over 2"),
        ({"attn_mask": torch.ones(3, 3, dtype=torch.bool)}, r"mask of \[3, 3\]"),
        ({"is_causal": True}, "one token stream"),
    ],
)
def test_what_an_attention_may_not_ask(options: dict[str, Any], text: str) -> None:
    model = wan()
    with torch.no_grad(), spread(model) as handle:
        handle._ledger.split(torch.zeros(1, 3, 1), 1, "image", "hidden_states")
        handle._ledger.split(torch.zeros(1, 2, 1), 1, "text", "encoder_hidden_states")
        with pytest.raises(fast_ulysses.InvalidArgument, match=text):
            attend(handle, **options)


def test_a_replaced_processor_is_noticed() -> None:
    model: Any = wan()
    with torch.no_grad(), spread(model):
        model.blocks[1].attn1.set_processor(type(model.blocks[1].attn1.processor)())
        with pytest.raises(fast_ulysses.StateError, match=r"blocks\.1\.attn1.*was replaced"):
            model(**TINY["wan"].inputs())


def test_a_processor_that_cannot_be_routed_is_refused() -> None:
    class Foreign:
        _parallel_config = None

        def __call__(self, *_: Any, **__: Any) -> torch.Tensor:
            raise NotImplementedError

    model: Any = wan()
    model.blocks[1].attn1.processor = Foreign()
    with pytest.raises(fast_ulysses.InvalidArgument, match="Foreign"):
        spread(model)
    assert model.blocks[0].attn1.processor._parallel_config is None
    assert not model._forward_pre_hooks
    model.blocks[1].attn1.processor = object()
    with pytest.raises(fast_ulysses.InvalidArgument, match="no _parallel_config"):
        spread(model)


def test_no_attention_through_the_group_is_noticed() -> None:
    model: Any = wan()
    model.blocks = torch.nn.ModuleList([_Idle()])
    with torch.no_grad(), pytest.raises(fast_ulysses.InvalidArgument, match="no attention"):
        spread(model)
    model.add_module("unused", TINY["wan"].model())
    plan = {"blocks.0": type(model)._cp_plan["blocks.0"]}
    with torch.no_grad(), spread(model, plan=plan), pytest.raises(fast_ulysses.StateError, match="no attention of"):
        model(**TINY["wan"].inputs())


class _Idle(torch.nn.Module):
    def forward(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        return hidden_states


def test_parallelised_once_only() -> None:
    model: Any = wan()
    handle = spread(model)
    with pytest.raises(fast_ulysses.StateError, match="parallelised already"):
        spread(model)
    with pytest.raises(fast_ulysses.StateError, match="copied"):
        copy.deepcopy(model)
    handle.remove()
    handle.remove()
    spread(copy.deepcopy(model)).remove()


def test_remove_takes_everything_back() -> None:
    from diffusers.models.transformers import transformer_wan

    real = transformer_wan.dispatch_attention_fn
    first, second = wan(), wan()
    before = {name: sorted(vars(module)) for name, module in first.named_modules()}
    one = spread(first)
    two = spread(second)
    assert transformer_wan.dispatch_attention_fn is not real
    one.remove()
    assert transformer_wan.dispatch_attention_fn is not real
    two.remove()
    assert transformer_wan.dispatch_attention_fn is real
    assert {name: sorted(vars(module)) for name, module in first.named_modules()} == before
    for module in first.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert getattr(getattr(module, "processor", None), "_parallel_config", None) is None


def test_other_models_do_not_notice() -> None:
    model, other, inputs = wan(), wan(), TINY["wan"].inputs()
    with torch.no_grad():
        reference = other(**inputs, return_dict=False)
        with spread(model):
            ours = other(**inputs, return_dict=False)
    assert all(torch.equal(x, y) for x, y in zip(ours, reference, strict=True))


def test_a_route_that_reaches_diffusers_itself_raises() -> None:
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    query = torch.zeros(1, 2, 1, 8)
    with pytest.raises(fast_ulysses.StateError, match="reached diffusers' own"):
        dispatch_attention_fn(query, query, query, parallel_config=Route(lambda *_, **__: query))


def test_an_untried_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusers.__version__", "0.99.0")
    with pytest.raises(fast_ulysses.StateError, match=r"diffusers 0\.99\.0 is installed.*0\.42\.1"):
        spread(wan())
    spread(wan(), allow_untried_version=True).remove()


def test_a_missing_diffusers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wan()
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"pip install 'fast-ulysses-nvshmem\[demo\]'"):
        spread(model)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(fast_ulysses.InvalidArgument, match="no _cp_plan"):
        spread(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"nowhere": {}}, "has no 'nowhere'"),
        ({"blocks.0": {"nothing": None}}, "'nothing'"),
        ({"blocks.0": {0: None}}, "mixes"),
        ({"blocks.0": "gather"}, "neither"),
    ],
)
def test_a_plan_that_does_not_fit(plan: dict[str, Any], text: str) -> None:
    with pytest.raises(fast_ulysses.InvalidArgument, match=text):
        spread(wan(), plan=plan)


class TestTokenLedger:
    def ledger(self, rank: int = 0, size: int = 2) -> TokenLedger:
        ledger = TokenLedger(rank, size)
        ledger.begin()
        return ledger

    def test_parts_are_balanced_and_cover_everything(self) -> None:
        whole = torch.arange(30).view(1, 30)
        parts = [self.ledger(rank, 4).split(whole, 1, "x", "hidden_states") for rank in range(4)]
        assert [part.shape[1] for part in parts] == [8, 8, 7, 7]
        assert torch.equal(torch.cat(parts, 1), whole)

    def test_a_table_of_another_length_is_refused(self) -> None:
        ledger = self.ledger()
        ledger.split(torch.zeros(1, 6), 1, "rope output 0", None)
        ledger.split(torch.zeros(1, 5), 1, "blocks.0.hidden_states", "hidden_states")
        with pytest.raises(fast_ulysses.InvalidArgument, match="rope output 0 was split as 6 tokens"):
            ledger.attention_splits(3, 3)

    def test_also_when_it_comes_late(self) -> None:
        ledger = self.ledger()
        ledger.split(torch.zeros(1, 5), 1, "blocks.0.hidden_states", "hidden_states")
        assert ledger.attention_splits(3, 3) == [3, 2]
        with pytest.raises(fast_ulysses.InvalidArgument, match="was split as 4"):
            ledger.split(torch.zeros(1, 4), 1, "blocks.1.mask", "mask")

    def test_a_stream_that_changes_its_length_is_refused(self) -> None:
        ledger = self.ledger()
        ledger.split(torch.zeros(1, 5), 1, "blocks.0", "hidden_states")
        with pytest.raises(fast_ulysses.InvalidArgument, match="earlier"):
            ledger.split(torch.zeros(1, 4), 1, "blocks.1", "hidden_states")

    def test_two_streams_are_added_up(self) -> None:
        ledger = self.ledger(rank=1, size=3)
        ledger.split(torch.zeros(1, 7), 1, "image", "hidden_states")
        ledger.split(torch.zeros(1, 4), 1, "text", "encoder_hidden_states")
        assert ledger.attention_splits(3, 3) == [5, 3, 3]
        with pytest.raises(fast_ulysses.InvalidArgument, match=r"7 of 'hidden_states' \+ 4 of 'encoder"):
            ledger.attention_splits(2, 2)

    def test_only_what_was_split_is_gathered(self) -> None:
        ledger = self.ledger()
        with pytest.raises(fast_ulysses.InvalidArgument, match="was not split"):
            ledger.gather_splits(3, "output 0")
        ledger.split(torch.zeros(1, 5), 1, "image", "hidden_states")
        assert ledger.gather_splits(3, "output 0") == [3, 2]
        with pytest.raises(fast_ulysses.InvalidArgument, match="holds 5 tokens"):
            ledger.gather_splits(5, "output 0")
