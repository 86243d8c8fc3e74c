"""Ulysses sequence parallelism: the exchanges around attention, straight into the peers' memory.

    group = fast_ulysses.init_group()                              # collective
    q, k, v = fast_ulysses.a2a_qkv(q, k, v, group)                 # [B, s_r, H, D] -> [B, S, h_r, D]
    o = attention(q, k, v)
    o = fast_ulysses.a2a(o, group, scatter_dim=1, gather_dim=2)    # and back
    group.destroy()                                                # collective

The same exchanges are the operators ``torch.ops.fast_ulysses.*``, which take the group's handle, a string.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401  (first of all: it brings libraries that others must share)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "fast_ulysses needs torch, which is yours to choose: pip install torch (any build for your machine), "
        "or pip install 'fast-ulysses-nvshmem[torch]'"
    ) from error

from ._C import __version__, balanced_split
from .errors import (
    CollectiveMismatch,
    CudaError,
    FastUlyssesError,
    InvalidArgument,
    PeerError,
    PeerTimeout,
    StateError,
    TransportError,
)
from .group import Group, init_group
from .ops import a2a, a2a_qkv, all_to_all_single
from .sharding import shard, shard_positions, unshard

__all__ = [
    "CollectiveMismatch",
    "CudaError",
    "FastUlyssesError",
    "Group",
    "InvalidArgument",
    "PeerError",
    "PeerTimeout",
    "StateError",
    "TransportError",
    "__version__",
    "a2a",
    "a2a_qkv",
    "all_to_all_single",
    "balanced_split",
    "init_group",
    "shard",
    "shard_positions",
    "unshard",
]
