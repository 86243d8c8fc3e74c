"""The exceptions of fast_ulysses.

They are made in C++, from the one table that also gives every error its code, so a core error and a Python error of
the same kind are the same class. Each also derives from the builtin that a caller would expect.

================== ============= =============================================================================
class              also a        raised when
================== ============= =============================================================================
InvalidArgument    ValueError    an argument is wrong; nothing was sent and the group stays usable
StateError         RuntimeError  the group was destroyed, is unknown, or carries an earlier fault
TransportError     RuntimeError  a named transport cannot serve this group
CudaError          RuntimeError  CUDA reported an error
PeerTimeout        TimeoutError  a rank did not arrive in time; the text names it
PeerError          ConnectionError  a rank died or aborted; the text names it
CollectiveMismatch RuntimeError  ranks made different calls; the text names both
================== ============= =============================================================================
"""

from __future__ import annotations

from ._C import (
    CollectiveMismatch,
    CudaError,
    FastUlyssesError,
    InvalidArgument,
    PeerError,
    PeerTimeout,
    StateError,
    TransportError,
)

__all__ = [
    "CollectiveMismatch",
    "CudaError",
    "FastUlyssesError",
    "InvalidArgument",
    "PeerError",
    "PeerTimeout",
    "StateError",
    "TransportError",
]
