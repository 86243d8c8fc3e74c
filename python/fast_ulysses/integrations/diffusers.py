"""Hugging Face diffusers: run a transformer's self-attention sequence-parallel over a group.

::

    group = fast_ulysses.init_group()
    with parallelize(model, group):
        sample = model(hidden_states=latents, timestep=t, encoder_hidden_states=text).sample

Every rank calls the model with the same whole inputs and gets the same whole output. In between each rank works on its
own tokens: the model's own ``_cp_plan`` says which inputs are cut along the sequence and which outputs are joined.
Self-attention goes ``a2a_qkv`` -> the model's own attention backend on ``[B, S, h_r, D]`` -> ``a2a``. Cross-attention,
whose keys and values every rank holds whole, communicates nothing.

Unlike ``model.enable_parallelism`` of diffusers this works without an accelerator, cuts any number of tokens and any
number of heads (balanced: 12 heads over 5 ranks are 3, 3, 2, 2, 2), and changes nothing that ``Parallelized.remove``
does not take back. ``_attention_route`` says how attention is reached without a fork of diffusers, and why so.

What cannot be done right raises: masks, causal attention over several token streams, dropout, grouped-query heads,
gradients, sharded cross-attention (LTX), a processor that was replaced afterwards, an untried version of diffusers.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from .._C import balanced_split
from ..errors import InvalidArgument, StateError
from ..timeline import Timeline, span_maker
from . import _attention_route as route
from ._plan_hooks import install_plan
from ._token_ledger import TokenLedger

if TYPE_CHECKING:
    from ..group import Group

__all__ = ["TRIED_MODELS", "TRIED_VERSIONS", "Exchange", "GroupExchange", "Parallelized", "parallelize"]

TRIED_VERSIONS = ("0.42.1",)
"""Versions of diffusers whose hooks into attention were looked at and tested."""

TRIED_MODELS = (
    "WanTransformer3DModel",
    "ChronoEditTransformer3DModel",
    "MiniMaxH3Transformer3DModel",
    "FluxTransformer2DModel",
    "QwenImageTransformer2DModel",
)
"""Models held against one process in the tests; others with a ``_cp_plan`` get a warning."""

SPAN_SCATTER, SPAN_ATTENTION, SPAN_GATHER, SPAN_JOIN = "exchange q, k, v", "attention", "exchange output", "join output"
"""Names of the spans in a timeline."""

_log = logging.getLogger(__name__)

Tensors3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Exchange(Protocol):
    """The two exchanges around attention and the gather at the end; splits are by group rank."""

    def scatter_heads(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: list[int], tokens: list[int]
    ) -> Tensors3:
        """``[B, s_r, H, D] -> [B, S, h_r, D]``, each."""

    def gather_heads(self, out: torch.Tensor, heads: list[int], tokens: list[int]) -> torch.Tensor:
        """``[B, S, h_r, D] -> [B, s_r, H, D]``."""

    def join(self, tensor: torch.Tensor, dim: int, splits: list[int]) -> torch.Tensor:
        """All ranks' parts along ``dim``."""


class GroupExchange:
    """:class:`Exchange` by the ops of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def scatter_heads(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: list[int], tokens: list[int]
    ) -> Tensors3:
        query, key, value = torch.ops.fast_ulysses.a2a_qkv(query, key, value, self._group.handle, 2, 1, heads, tokens)
        return query, key, value

    def gather_heads(self, out: torch.Tensor, heads: list[int], tokens: list[int]) -> torch.Tensor:
        gathered: torch.Tensor = torch.ops.fast_ulysses.a2a(out, self._group.handle, 1, 2, tokens, heads)
        return gathered

    def join(self, tensor: torch.Tensor, dim: int, splits: list[int]) -> torch.Tensor:
        import fast_ulysses

        return fast_ulysses.unshard(tensor, self._group, dim=dim, splits=splits)


def parallelize(
    model: torch.nn.Module,
    group: Group,
    *,
    plan: Mapping[str, Any] | None = None,
    timeline: Timeline | None = None,
    exchange: Exchange | None = None,
    allow_untried_version: bool = False,
) -> Parallelized:
    """Spread every later forward of ``model`` over ``group``; local, inference only.

    All members of the group call it alike, and then call the model together with equal inputs. The result of a forward
    equals that of one process up to the rounding of differently shaped matrix products.

    ``plan`` takes the place of the model's own ``_cp_plan``. ``timeline`` records the spans of attention and exchanges.
    ``exchange`` takes the place of the group's exchanges (tests leave them out to see that the result then differs).

    Raises InvalidArgument (a plan or an attention that cannot be spread), StateError (already parallelised, an untried
    version of diffusers), ImportError (no diffusers).
    """
    _check_version(allow_untried_version)
    if plan is None:
        plan = getattr(model, "_cp_plan", None)
    if plan is None:
        raise InvalidArgument(
            f"{type(model).__name__} has no _cp_plan, so nothing says where its inputs are to be cut: pass plan="
        )
    if getattr(model, "_parallel_config", None) is not None:
        raise StateError(
            f"this {type(model).__name__} is parallelised already, by diffusers or by an earlier parallelize(); "
            "take that back first"
        )
    if type(model).__name__ not in TRIED_MODELS:
        _log.warning(
            "%s is not among the models tried (%s): compare one forward with that of a single process",
            type(model).__name__,
            ", ".join(TRIED_MODELS),
        )
    return Parallelized(model, group, plan, timeline, exchange if exchange is not None else GroupExchange(group))


def _check_version(allow_untried: bool) -> None:
    try:
        version = str(importlib.import_module("diffusers").__version__)
    except ImportError as error:
        raise ImportError(
            "fast_ulysses.integrations.diffusers needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'"
        ) from error
    if version not in TRIED_VERSIONS and not allow_untried:
        raise StateError(
            f"diffusers {version} is installed; its way into attention was tried with {', '.join(TRIED_VERSIONS)} only "
            "and may differ. Install one of these, or pass allow_untried_version=True and compare a forward with that "
            "of a single process"
        )


class Parallelized:
    """What :func:`parallelize` did to a model; also a context manager that takes it back.

    The model holds it and it holds the model. It takes nothing of the group with it: ``group.destroy()`` stays the
    caller's, after :meth:`remove`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: Group,
        plan: Mapping[str, Any],
        timeline: Timeline | None,
        exchange: Exchange,
    ) -> None:
        self._model = model
        self._size = group.size
        self._rank = group.rank
        self._exchange = exchange
        self._span = span_maker(timeline)
        self._ledger = TokenLedger(group.rank, group.size)
        self._route = route.Route(self._attend)
        self._undo: list[Callable[[], object]] = []
        self._processors = route.attention_processors(model)
        if not self._processors:
            raise InvalidArgument(f"{type(model).__name__} has no attention that could be spread")
        try:
            self._install(plan)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Give the model back as it was; local, idempotent."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Parallelized:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.remove()

    def __deepcopy__(self, _memo: object) -> NoReturn:
        route.refuse_copy()

    def __reduce__(self) -> NoReturn:
        route.refuse_copy()

    def _install(self, plan: Mapping[str, Any]) -> None:
        model = self._model
        # First, so that it runs before the splits that the plan may hang on the model itself.
        self._undo.append(model.register_forward_pre_hook(self._begin).remove)
        self._undo.extend(handle.remove for handle in install_plan(model, plan, self._ledger, self._join))
        self._undo.append(model.register_forward_hook(self._end).remove)
        for _, _, processor in self._processors:
            if processor._parallel_config is self._route:
                continue  # one processor object may serve several modules
            for names in route.dispatchers_of(processor):
                route.redirect(names)
                self._undo.append(lambda names=names: route.restore(names))  # type: ignore[misc]
            self._set_config(processor)
        self._set_config(model)

    def _set_config(self, owner: Any) -> None:
        owned = "_parallel_config" in vars(owner)
        before = getattr(owner, "_parallel_config", None)
        if before is not None:
            raise StateError(f"{type(owner).__name__} is parallelised already: take that back first")
        owner._parallel_config = self._route

        def undo() -> None:
            if owned:
                owner._parallel_config = before
            else:
                del owner._parallel_config

        self._undo.append(undo)

    def _begin(self, _model: torch.nn.Module, _args: Any) -> None:
        self._ledger.begin()
        for name, module, processor in self._processors:
            if module.processor is not processor or processor._parallel_config is not self._route:
                raise StateError(
                    f"the attention processor of '{name}' was replaced after parallelize(), so its attention would see "
                    "this rank's tokens only: call remove(), set the processor, and parallelize again"
                )

    def _end(self, model: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._ledger.tokens_are_split and not self._ledger.attentions:
            raise StateError(
                f"no attention of this {type(model).__name__} went through the group although its tokens were split: "
                "its result is that of separate pieces"
            )

    def _join(self, tensor: torch.Tensor, dim: int, splits: list[int]) -> torch.Tensor:
        with self._span(SPAN_JOIN):
            return self._exchange.join(tensor, dim, splits)

    def _attend(
        self,
        real: Callable[..., torch.Tensor],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What the processors call in place of diffusers' dispatcher ``real``, on ``[B, tokens, heads, D]``."""
        ledger = self._ledger
        if not ledger.tokens_are_split:
            return real(query, key, value, attn_mask, dropout_p, is_causal, *args, parallel_config=None, **kwargs)
        self._refuse(query, key, value, attn_mask, dropout_p, is_causal)
        tokens = ledger.attention_splits(query.shape[1], key.shape[1])
        heads = balanced_split(query.shape[2], self._size)
        with self._span(SPAN_SCATTER):
            query, key, value = self._exchange.scatter_heads(query, key, value, heads, tokens)
        with self._span(SPAN_ATTENTION):
            if heads[self._rank] == 0:
                out = value.new_empty((*query.shape[:-1], value.shape[-1]))
            else:
                out = real(query, key, value, None, 0.0, is_causal, *args, parallel_config=None, **kwargs)
        if not isinstance(out, torch.Tensor):
            raise InvalidArgument(f"the attention backend returned {type(out).__name__}: only a tensor can be gathered")
        with self._span(SPAN_GATHER):
            return self._exchange.gather_heads(out, heads, tokens)

    def _refuse(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        dropout_p: float,
        is_causal: bool,
    ) -> None:
        """Raise for what would not come out right; from the arguments alone, so on all ranks alike."""
        if attn_mask is not None:
            raise InvalidArgument(
                f"an attention mask of {list(attn_mask.shape)} cannot be honoured over sharded tokens: leave out the "
                "padding instead of masking it"
            )
        if is_causal and self._ledger.streams > 1:
            raise InvalidArgument(
                "causal attention is supported over one token stream only: several are interleaved by rank"
            )
        if dropout_p:
            raise InvalidArgument(f"dropout_p={dropout_p}: each rank would draw its own; run the model with eval()")
        if not query.shape[2] == key.shape[2] == value.shape[2]:
            raise InvalidArgument(
                f"{query.shape[2]} query heads over {key.shape[2]} and {value.shape[2]} key and value heads: grouped "
                "heads are not supported yet"
            )
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            raise InvalidArgument("only inference is supported: call the model under torch.no_grad()")
