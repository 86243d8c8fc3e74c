"""Attention over a sequence that two or more ranks share: the example of the README, held against one process.

    torchrun --nproc-per-node 2 examples/minimal.py

Every rank makes the same whole q, k, v and takes its own tokens of them; a real program would have those alone. So each
exchange can be checked bit for bit, and the attention up to rounding. Exits with code 1 where a check fails.
"""

from __future__ import annotations

import sys

import fast_ulysses
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

TOKENS_PER_RANK, HEADS_PER_RANK, WIDTH = 96, 3, 64
MOST_DIFFERENCE = 1e-5


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of ``[B, S, H, D]`` tensors; the result is a transposed view, and goes into the exchange as it is."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def failures(group: fast_ulysses.Group) -> list[str]:
    tokens, heads = TOKENS_PER_RANK * group.size, HEADS_PER_RANK * group.size
    torch.manual_seed(0)  # the same on every rank
    whole = [torch.randn(1, tokens, heads, WIDTH) for _ in range(3)]
    q, k, v = (fast_ulysses.shard(x, group, dim=1) for x in whole)  # my tokens, all heads

    q, k, v = fast_ulysses.a2a_qkv(q, k, v, group)  # all tokens, my heads: one exchange
    found = []
    for name, got, x in zip("qkv", (q, k, v), whole, strict=True):
        if not torch.equal(got, fast_ulysses.shard(x, group, dim=2)):
            found.append(f"{name} after a2a_qkv is not this rank's heads of the whole {name}")

    out = fast_ulysses.a2a(attention(q, k, v), group, scatter_dim=1, gather_dim=2)  # my tokens, all heads again
    expected = fast_ulysses.shard(attention(*whole), group, dim=1)
    difference = (out - expected).abs().max().item()
    if not difference <= MOST_DIFFERENCE:  # also when it is nan
        found.append(f"the attention differs from one process by {difference:.1e}, more than {MOST_DIFFERENCE:.0e}")
    print(f"{group.handle}: transport {group.transport}, largest difference {difference:.1e}, {group.stats()}")
    return found


def main() -> int:
    dist.init_process_group("gloo")
    with fast_ulysses.init_group() as group, torch.no_grad():  # collective over the process group
        found = failures(group)
    dist.destroy_process_group()
    for text in found:
        print(f"rank {group.rank}: WRONG: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
