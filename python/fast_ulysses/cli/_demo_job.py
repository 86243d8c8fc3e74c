"""What the demo runs: the model, its inputs, and the job description that the parent hands to the ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["FAULTS", "HEADS", "HEAD_DIM", "LAYERS", "Case", "Job", "build_model", "make_inputs", "native_bytes"]

HEADS, HEAD_DIM, LAYERS = 12, 128, 2
"""The published head geometry of Wan2.1 1.3B; two of its thirty layers."""

ATTENTION_SCALE = 16.0
"""By how much the projection after self-attention is scaled. With random weights attention averages thousands of values
to almost nothing; scaled so, it moves the output by about as much as the output is large, and an exchange that is wrong
shows, while the rounding of fp32 stays a tenth of the bar."""

PATCH, CHANNELS, TEXT_TOKENS, TEXT_DIM = 2, 16, 32, 64

FAULTS = ("lost-exchange", "swapped-heads", "idle-control", "dead-rank")
"""What ``--plant-fault`` can break, to see the demo fail."""


@dataclass(frozen=True)
class Case:
    """One latent shape."""

    name: str
    frames: int
    height: int
    width: int
    forwards: int

    @property
    def tokens(self) -> int:
        return self.frames * (self.height // PATCH) * (self.width // PATCH)


@dataclass(frozen=True)
class Job:
    """Everything that a rank has to know; travels as a JSON file."""

    cases: list[Case]
    transports: list[str]
    directory: str
    seed: int
    threads: int
    timeout_s: float
    fault: str | None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Job:
        fields: dict[str, Any] = json.loads(path.read_text())
        fields["cases"] = [Case(**case) for case in fields["cases"]]
        return Job(**fields)

    def reference(self, case: Case) -> Path:
        """Where the one-process output of ``case`` lies."""
        return Path(self.directory) / f"reference-{case.name}.pt"


def build_model(seed: int) -> Any:
    """The Wan transformer of diffusers with 1.3B's head geometry; the same weights in every process."""
    import diffusers
    import torch

    wan: Any = diffusers.WanTransformer3DModel
    torch.manual_seed(seed)
    model = wan(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        num_layers=LAYERS,
        ffn_dim=1024,
        text_dim=TEXT_DIM,
        freq_dim=64,
    ).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn1.to_out[0].weight.mul_(ATTENTION_SCALE)
    return model


def make_inputs(case: Case, seed: int) -> dict[str, torch.Tensor]:
    """The keyword arguments of one forward; the same in every process."""
    import torch

    source = torch.Generator().manual_seed(seed + 1)
    return {
        "hidden_states": torch.randn(1, CHANNELS, case.frames, case.height, case.width, generator=source),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, TEXT_DIM, generator=source),
        "timestep": torch.tensor([500]),
    }


def native_bytes(tokens: list[int], heads: list[int], rank: int) -> int:
    """Bytes that ``rank`` has to send to its peers in one forward, computed from the shapes alone (fp32, batch 1)."""
    inward = 3 * tokens[rank] * (sum(heads) - heads[rank])
    outward = (sum(tokens) - tokens[rank]) * heads[rank]
    return LAYERS * (inward + outward) * HEAD_DIM * 4
