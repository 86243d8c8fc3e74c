"""A video transformer of Hugging Face diffusers over a group, held against one process. Tiny, with random weights.

    torchrun --nproc-per-node 2 examples/diffusers_wan.py

Needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'. 45 tokens and 5 heads: any number of either will do.
Exits with code 1 where a check fails.
"""

from __future__ import annotations

import sys

import fast_ulysses
import torch
import torch.distributed as dist
from diffusers import WanTransformer3DModel
from fast_ulysses.integrations.diffusers import parallelize

LAYERS = 2
MOST_DIFFERENCE = 1e-5


def failures(group: fast_ulysses.Group) -> list[str]:
    torch.manual_seed(0)  # the same weights and inputs on every rank
    model = WanTransformer3DModel(
        num_attention_heads=5, attention_head_dim=16, num_layers=LAYERS, ffn_dim=64, text_dim=16, freq_dim=16
    ).eval()
    inputs = {
        "hidden_states": torch.randn(1, 16, 3, 6, 10),  # 3 frames of 3 x 5 patches
        "encoder_hidden_states": torch.randn(1, 7, 16),
        "timestep": torch.tensor([700]),
    }
    alone = model(**inputs).sample
    with parallelize(model, group):  # every rank passes the same whole inputs, and gets the same whole output
        together = model(**inputs).sample

    difference = (together - alone).abs().max().item()
    calls = group.stats()["calls"]
    print(f"{group.handle}: transport {group.transport}, {calls} exchanges, largest difference {difference:.1e}")
    found = []
    if not difference <= MOST_DIFFERENCE:  # also when it is nan
        found.append(f"the output differs from one process by {difference:.1e}, more than {MOST_DIFFERENCE:.0e}")
    if calls != 2 * LAYERS:
        found.append(f"{calls} exchanges for {LAYERS} layers: two each are expected")
    return found


def main() -> int:
    dist.init_process_group("gloo")
    with fast_ulysses.init_group() as group, torch.no_grad():
        found = failures(group)
    dist.destroy_process_group()
    for text in found:
        print(f"rank {group.rank}: WRONG: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
