"""A sequence, and heads, that the ranks do not divide: splits, shard and unshard, and a result in memory of your own.

    torchrun --nproc-per-node 2 examples/uneven.py

Shards may differ and may be empty. Whoever gives splits gives one length a rank, the same lists on all ranks.
Exits with code 1 where a check fails.
"""

from __future__ import annotations

import sys

import fast_ulysses
import torch
import torch.distributed as dist

TOKENS, HEADS, WIDTH = 1561, 5, 32  # 1561 = 7 * 223


def failures(group: fast_ulysses.Group) -> list[str]:
    torch.manual_seed(0)  # the same on every rank
    whole = torch.randn(2, TOKENS, HEADS, WIDTH).to(torch.bfloat16)
    tokens = fast_ulysses.balanced_split(TOKENS, group.size)  # over 2 ranks: [781, 780]
    heads = fast_ulysses.balanced_split(HEADS, group.size)  # over 2 ranks: [3, 2]

    mine = fast_ulysses.shard(whole, group, dim=1, splits=tokens)  # a view: local, nothing is sent
    into = fast_ulysses.a2a(mine, group, scatter_splits=heads, gather_splits=tokens)

    # The way back. In the inverse exchange each list keeps to its dimension: tokens are scattered now, heads gathered.
    # out= is any tensor of the right shape; one of group.empty() is written by the peers directly.
    out = group.empty(mine.shape, mine.dtype)
    fast_ulysses.a2a(into, group, scatter_dim=1, gather_dim=2, scatter_splits=tokens, gather_splits=heads, out=out)
    joined = fast_ulysses.unshard(out, group, dim=1, splits=tokens)  # collective, over torch.distributed

    checks = {
        "the exchange is not this rank's heads of all tokens": torch.equal(into, fast_ulysses.shard(whole, group, 2)),
        "the inverse exchange is not the shard it began with": torch.equal(out, mine),
        "the joined shards are not the whole tensor": torch.equal(joined, whole),
    }
    print(f"{group.handle}: {tokens[group.rank]} of {TOKENS} tokens, {heads[group.rank]} of {HEADS} heads")
    return [text for text, holds in checks.items() if not holds]


def main() -> int:
    dist.init_process_group("gloo")
    with fast_ulysses.init_group() as group:
        found = failures(group)
    dist.destroy_process_group()
    for text in found:
        print(f"rank {group.rank}: WRONG: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
