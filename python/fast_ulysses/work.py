"""An exchange that is under way."""

from __future__ import annotations

import torch

from . import _C


class Work:
    """What `Group.all_to_all_single(..., async_op=True)` returns beside its result.

    Holds the input and the result until `wait()`: neither may be read or changed before.
    """

    def __init__(self, pending: _C.PendingExchange | None, *held: torch.Tensor) -> None:
        self._pending = pending  # None: done when the call returned
        self._held = held

    def is_completed(self) -> bool:
        """Local: whether `wait()` would return, or raise, at once."""
        return self._pending is None or self._pending.done()

    def wait(self) -> None:
        """Blocks until the result is there (CPU tensors). Raises what the exchange met: PeerError and the like."""
        if self._pending is not None:
            self._pending.wait()
        self._pending, self._held = None, ()
