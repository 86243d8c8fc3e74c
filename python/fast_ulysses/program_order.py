"""Inductor keeps the exchanges of a graph in the order of the program.

Nothing in a graph orders two exchanges of which neither needs the other's result, and Inductor arranges what is free
for the least peak memory. That depends on the sizes of tensors, which differ from rank to rank where shards are uneven,
so that ranks would come to different orders and fail with CollectiveMismatch. Each exchange therefore is scheduled
behind the one before it, as Inductor does for the collectives it knows. Other backends leave the order alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_LAST = "_fast_ulysses_last_exchange"
_done = False


def keep_program_order(names: tuple[str, ...]) -> None:
    """Local: to be called whenever shapes are inferred, which compilation does; does nothing without Inductor.

    Importing Inductor takes seconds, so it is not imported for this: when it infers shapes it is there.
    """
    global _done
    if _done or "torch._inductor.lowering" not in sys.modules:
        return
    _done = True
    from torch._inductor import lowering

    for name in names:
        op = getattr(torch.ops.fast_ulysses, name).default
        constraint = lowering.tag_to_layout_constraint(lowering.get_layout_constraint_tag(op))
        lowering.make_fallback(op, layout_constraint=constraint)
        lowering.lowerings[op] = _behind_the_last(op, lowering.lowerings[op])


def _behind_the_last(op: Any, lower: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    @functools.wraps(lower)
    def lower_in_order(*args: Any, **kwargs: Any) -> Any:
        graph = V.graph
        first = len(graph.operations)
        result = lower(*args, **kwargs)
        for operation in graph.operations[first:]:
            if isinstance(operation, ir.FallbackKernel) and operation.op_overload is op:
                last = getattr(graph, _LAST, None)
                if last is not None:
                    graph.additional_buffer_deps[operation.get_operation_name()].add(last)
                setattr(graph, _LAST, operation.get_name())
        return result

    return lower_in_order
