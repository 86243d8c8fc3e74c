"""The way from a model's attention processors to the group, without a fork of diffusers.

Every processor of a model that can be parallelised calls ``dispatch_attention_fn(..., backend=self._attention_backend,
parallel_config=self._parallel_config)``, and passes ``parallel_config=None`` where the keys are not sharded. So the
processors already say which attention is to be spread. Ways in that were weighed:

- *an attention backend of our own* in diffusers' registry: names are members of a closed enum, and the processor's
  choice of a real backend (flash, sage, cuDNN, ``attention_backend(...)``) would be lost or have to be kept twice;
- *wrapping the registered backends*: reaches every model of the process, and a backend whose signature lacks
  ``_parallel_config`` is called without it, so its attention would silently stay on local tokens;
- *own processors*: one for each model, which is a fork in small pieces;
- *replacing the name* ``dispatch_attention_fn`` *in the modules that define the processors in use* (taken): the one
  point that all of them pass, before the backend is chosen, so whatever backend the model has gets an ordinary call on
  ``[B, S, h_r, D]``. The stand-in acts only on a call that carries one of our :class:`Route` objects, and hands every
  other call through unchanged; the name is put back when the last model lets go.

A Route that reaches diffusers' own dispatcher by another way raises there instead of being ignored.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..errors import InvalidArgument, StateError

__all__ = ["Route", "attention_processors", "dispatchers_of", "redirect", "refuse_copy", "restore"]

_NAME = "dispatch_attention_fn"

Attend = Callable[..., torch.Tensor]


class Route:
    """Stands in a processor's ``_parallel_config`` and marks its attention calls as ours."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend

    @property
    def context_parallel_config(self) -> NoReturn:
        raise StateError(
            "an attention of a model under fast_ulysses.integrations.diffusers.parallelize reached diffusers' own "
            "context parallelism: its processor does not call the dispatch_attention_fn of its own module"
        )

    def __deepcopy__(self, _memo: object) -> NoReturn:
        refuse_copy()

    def __reduce__(self) -> NoReturn:
        refuse_copy()


def refuse_copy() -> NoReturn:
    """Raise: the copy would share this model's books and group."""
    raise StateError("a parallelised model cannot be copied or pickled: call remove() on its handle first")


def attention_processors(model: torch.nn.Module) -> list[tuple[str, Any, Any]]:
    """(name, module, processor) of the model's attention modules; raises for one that cannot be routed."""
    found: list[tuple[str, Any, Any]] = []
    for name, module in model.named_modules():
        processor = getattr(module, "processor", None)
        if processor is None:
            continue
        if not hasattr(processor, "_parallel_config"):
            raise InvalidArgument(
                f"the attention '{name}' uses {type(processor).__name__}, which has no _parallel_config and so cannot "
                "be told which attention is sharded; use the processor that the model comes with"
            )
        found.append((name, module, processor))
    return found


def dispatchers_of(processor: Any) -> list[dict[str, Any]]:
    """The module globals through which ``processor`` reaches the dispatcher: its own class's and its bases'."""
    found: list[dict[str, Any]] = []
    for cls in type(processor).__mro__:
        for method in ("__call__", "forward"):
            function = _unwrap(cls.__dict__.get(method))
            names = getattr(function, "__globals__", {})
            if _NAME in names and not any(names is other for other in found):
                found.append(names)
    if not found:
        raise InvalidArgument(
            f"{type(processor).__name__} (from {type(processor).__module__}) does not call diffusers' {_NAME}, so its "
            "attention cannot be routed through the group; use the processor that the model comes with"
        )
    return found


def _unwrap(function: Any) -> Any:
    """What decorators with ``functools.wraps`` have wrapped."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


_lock = threading.Lock()
_redirected: dict[int, tuple[dict[str, Any], Any, int]] = {}  # id of the globals -> them, the real function, users


def redirect(names: dict[str, Any]) -> None:
    """Put the stand-in into these module globals; counted, so every call wants one of :func:`restore`."""
    with _lock:
        if id(names) in _redirected:
            _, real, users = _redirected[id(names)]
            _redirected[id(names)] = (names, real, users + 1)
            return
        real = names[_NAME]
        _redirected[id(names)] = (names, real, 1)
        names[_NAME] = _stand_in(real)


def restore(names: dict[str, Any]) -> None:
    """Take back one :func:`redirect`; the last one puts the real function back."""
    with _lock:
        _, real, users = _redirected[id(names)]
        if users > 1:
            _redirected[id(names)] = (names, real, users - 1)
            return
        del _redirected[id(names)]
        names[_NAME] = real


def _stand_in(real: Attend) -> Attend:
    @functools.wraps(real)
    def dispatch_attention_fn(*args: Any, parallel_config: Any = None, **kwargs: Any) -> torch.Tensor:
        if isinstance(parallel_config, Route):
            return parallel_config.attend(real, *args, **kwargs)
        return real(*args, parallel_config=parallel_config, **kwargs)

    return dispatch_attention_fn
