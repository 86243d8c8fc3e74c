"""A model's context-parallel plan, as torch hooks: where tensors are cut on the way in and joined on the way out.

torch's own module hooks are used rather than diffusers' ``HookRegistry``: they leave ``forward`` untouched, come off by
their handles, and lie outside whatever diffusers itself wraps around a module (offloading, caching), as a split must.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import InvalidArgument
from ._token_ledger import TOKEN_STREAMS, TokenLedger

__all__ = ["install_plan"]

Gather = Callable[[torch.Tensor, int, list[int]], torch.Tensor]


def install_plan(
    model: torch.nn.Module, plan: Mapping[str, Any], ledger: TokenLedger, gather: Gather
) -> list[RemovableHandle]:
    """Hang the plan on the model; what raises leaves no hook behind."""
    handles: list[RemovableHandle] = []
    try:
        for module_id, entry in plan.items():
            for name, module in _find(model, module_id):
                handles.extend(_install(module, name, entry, ledger, gather))
    except BaseException:
        for handle in handles:
            handle.remove()
        raise
    return handles


def _find(model: torch.nn.Module, module_id: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that ``module_id`` names; one ``*`` stands for every member of a ModuleList."""
    found: list[tuple[str, torch.nn.Module]] = [("", model)]
    for atom in module_id.split(".") if module_id else []:
        deeper: list[tuple[str, torch.nn.Module]] = []
        for name, module in found:
            prefix = f"{name}." if name else ""
            children = dict(module.named_children())
            if atom == "*" and isinstance(module, torch.nn.ModuleList):
                deeper.extend((prefix + key, child) for key, child in children.items())
            elif atom in children:
                deeper.append((prefix + atom, children[atom]))
            else:
                raise InvalidArgument(
                    f"the plan names the module '{module_id}', but '{name or type(model).__name__}' has no '{atom}'"
                )
        found = deeper
    yield from found


def _install(
    module: torch.nn.Module, name: str, entry: Any, ledger: TokenLedger, gather: Gather
) -> Iterator[RemovableHandle]:
    if isinstance(entry, Mapping):
        inputs = {key: rule for key, rule in entry.items() if isinstance(key, str)}
        outputs = {key: rule for key, rule in entry.items() if isinstance(key, int)}
        if any(_splits_output(rule) for rule in inputs.values()) or not all(map(_splits_output, outputs.values())):
            raise InvalidArgument(f"the plan of '{name}' mixes inputs, named by strings, with outputs, by numbers")
        if inputs:
            hook = _InputSplitter(module, name, inputs, ledger)
            yield module.register_forward_pre_hook(hook, with_kwargs=True)
        if outputs:
            yield module.register_forward_hook(_OutputSplitter(name, outputs, ledger))
        return
    rules = list(entry) if isinstance(entry, (list, tuple)) else [entry]
    if not all(rule is None or hasattr(rule, "gather_dim") for rule in rules):
        raise InvalidArgument(f"the plan of '{name}' is neither a dictionary of splits nor a gather: {entry!r}")
    yield module.register_forward_hook(_OutputGatherer(name, rules, ledger, gather))


def _splits_output(rule: Any) -> bool:
    return bool(getattr(rule, "split_output", False))


class _InputSplitter:
    def __init__(self, module: torch.nn.Module, name: str, rules: Mapping[str, Any], ledger: TokenLedger) -> None:
        self._name = name
        self._rules = rules
        self._ledger = ledger
        parameters = list(inspect.signature(type(module).forward).parameters)[1:]  # without self
        self._positions = {parameter: index for index, parameter in enumerate(parameters)}
        for parameter in rules:
            if parameter not in self._positions:
                raise InvalidArgument(
                    f"the plan splits '{parameter}' of '{name or 'model'}', whose forward takes {parameters}"
                )

    def __call__(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        arguments = list(args)
        changed = dict(kwargs)
        for name, rule in self._rules.items():
            if name in changed:
                changed[name] = self._split(changed[name], rule, name)
            elif self._positions[name] < len(arguments):
                position = self._positions[name]
                arguments[position] = self._split(arguments[position], rule, name)
        return tuple(arguments), changed

    def _split(self, value: Any, rule: Any, name: str) -> Any:
        where = f"{self._name or 'model'}.{name}"
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return _split_tensor(value, rule, self._ledger, where, name)
        if isinstance(value, (list, tuple)) and isinstance(rule, (list, tuple)) and len(value) == len(rule):
            parts = (
                _split_tensor(item, its_rule, self._ledger, f"{where}[{index}]", name)
                if isinstance(item, torch.Tensor)
                else item
                for index, (item, its_rule) in enumerate(zip(value, rule, strict=True))
            )
            return type(value)(parts) if type(value) in (list, tuple) else list(parts)
        raise InvalidArgument(f"{where} should be a tensor as its plan {rule!r} says, not {type(value).__name__}")


class _OutputSplitter:
    def __init__(self, name: str, rules: Mapping[int, Any], ledger: TokenLedger) -> None:
        self._name = name
        self._rules = rules
        self._ledger = ledger

    def __call__(self, _module: Any, _args: Any, output: Any) -> Any:
        tensors = _tensors_of(output, self._name)
        for index, rule in self._rules.items():
            where = f"{self._name or 'model'} output {index}"
            if index >= len(tensors):
                raise InvalidArgument(f"the plan splits {where}, but there are {len(tensors)} outputs")
            tensors[index] = _split_tensor(tensors[index], rule, self._ledger, where, None)
        return tensors[0] if isinstance(output, torch.Tensor) else tuple(tensors)


class _OutputGatherer:
    def __init__(self, name: str, rules: Sequence[Any], ledger: TokenLedger, gather: Gather) -> None:
        self._name = name
        self._rules = rules
        self._ledger = ledger
        self._gather = gather

    def __call__(self, _module: Any, _args: Any, output: Any) -> Any:
        tensors = _tensors_of(output, self._name)
        if len(tensors) != len(self._rules):
            raise InvalidArgument(
                f"the plan gathers {len(self._rules)} outputs of '{self._name}', which has {len(tensors)}"
            )
        for index, rule in enumerate(self._rules):
            if rule is None:
                continue
            where = f"output {index} of '{self._name or 'model'}'"
            tensor = tensors[index]
            if rule.expected_dims is not None and tensor.dim() != rule.expected_dims:
                raise InvalidArgument(f"{where} has {tensor.dim()} dimensions, the plan expects {rule.expected_dims}")
            splits = self._ledger.gather_splits(tensor.shape[rule.gather_dim], where)
            tensors[index] = self._gather(tensor, rule.gather_dim, splits)
        return tensors[0] if isinstance(output, torch.Tensor) else tuple(tensors)


def _tensors_of(output: Any, name: str) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in output):
        return list(output)
    raise InvalidArgument(f"'{name or 'model'}' should return tensors for its plan, not {type(output).__name__}")


def _split_tensor(tensor: torch.Tensor, rule: Any, ledger: TokenLedger, where: str, name: str | None) -> torch.Tensor:
    """One part, or the whole tensor where its dimensions are not those of the plan.

    That is how plans say "only if it is per token" (Wan's timestep: ``[batch]`` stays, ``[batch, tokens]`` is split).
    """
    if rule.expected_dims is not None and tensor.dim() != rule.expected_dims:
        if name in TOKEN_STREAMS:
            raise InvalidArgument(f"{where} has {tensor.dim()} dimensions, the plan expects {rule.expected_dims}")
        return tensor
    return ledger.split(tensor, rule.split_dim, where, name)
