"""Shapes that people run, by name: the attention inputs of models whose sequence is sharded.

Only the sharded tokens count; replicated ones (text) are never exchanged. Where a model fixes no number of tokens, its
documented default resolution gives it, as the note of the shape says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InvalidArgument

__all__ = ["NAMED_SHAPES", "Shape", "parse_shape", "parse_shapes"]


@dataclass(frozen=True)
class Shape:
    """The whole attention input ``[batch, tokens, heads, width]``, before it is sharded over ranks."""

    name: str
    batch: int
    tokens: int
    heads: int
    width: int
    note: str = ""

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.tokens, self.heads, self.width


_SHAPES = (
    Shape("wan-480p", 1, 32_760, 40, 128, "Wan2.1/2.2 14B, 832x480, 81 frames"),
    Shape("wan-720p", 1, 75_600, 40, 128, "Wan2.1/2.2 14B, 1280x720, 81 frames"),
    Shape("wan1.3b-480p", 1, 32_760, 12, 128, "Wan2.1 1.3B, 832x480, 81 frames"),
    Shape("ti2v-5b", 1, 27_280, 24, 128, "Wan2.2 TI2V-5B, 1280x704, 121 frames"),
    Shape("layer-27280", 1, 27_280, 40, 128, "the attention layer of published comparisons"),
    Shape("minimax-h3-5s", 1, 37_751, 56, 128, "MiniMax-H3, 5 s; an odd number of tokens"),
    Shape("minimax-h3-15s", 1, 109_103, 56, 128, "MiniMax-H3, 15 s; an odd number of tokens"),
    # 16 x 16 x 4 in a latent, patch 1: 53 x 30 x 31 of the model's 480p default, 848x480 and 121 frames.
    Shape("hunyuanvideo-1.5", 1, 49_290, 16, 128, "HunyuanVideo-1.5, 848x480, 121 frames"),
    Shape("hunyuanvideo", 1, 118_800, 24, 128, "HunyuanVideo, 1280x720, 129 frames"),
    # 8 x 8 in a latent, patches of 2 x 2: 83 x 83 of the model card's square resolution, 1328x1328.
    Shape("qwen-image", 1, 6_889, 24, 128, "Qwen-Image, 1328x1328; an odd number of tokens"),
    Shape("flux-1024", 1, 4_096, 24, 128, "FLUX.1, 1024x1024"),
    # 8 x 8 in a latent, patches of 2 x 2: 64 x 64 of the default, 1024x1024.
    Shape("z-image", 1, 4_096, 30, 128, "Z-Image, 1024x1024; heads for 2, 3, 5 or 6 ranks, uneven on others"),
    # 32 x 32 x 8 in a latent, patch 1: 24 x 16 x 16 of the default, 768x512 and 121 frames; video tokens only.
    Shape("ltx-2", 1, 6_144, 32, 128, "LTX-2 video, 768x512, 121 frames"),
    Shape("llama-64k", 1, 65_536, 32, 128, "Llama-like training, the queries of 65,536 tokens"),
)

NAMED_SHAPES: dict[str, Shape] = {shape.name: shape for shape in _SHAPES}
"""By name, as ``fast-ulysses bench exchange --shape`` takes them."""


def parse_shape(text: str) -> Shape:
    """A named shape, or one given as ``B,N,H,D``: batch, tokens, heads, elements a head. Raises InvalidArgument."""
    named = NAMED_SHAPES.get(text)
    if named is not None:
        return named
    try:
        batch, tokens, heads, width = (int(part) for part in text.split(","))
    except ValueError:
        names = ", ".join(NAMED_SHAPES)
        raise InvalidArgument(f"shape {text!r} is neither B,N,H,D nor one of {names}") from None
    if min(batch, tokens, heads, width) < 1:
        raise InvalidArgument(f"shape {text!r}: batch, tokens, heads and width have to be at least 1")
    return Shape(text, batch, tokens, heads, width)


def parse_shapes(text: str) -> list[Shape]:
    """A list by commas, of names and of ``B,N,H,D`` (four numbers in a row are one shape). Raises InvalidArgument."""
    words = [word.strip() for word in text.split(",")]
    shapes = []
    while words:
        taken = 1 if words[0] in NAMED_SHAPES or not words[0].lstrip("-").isdigit() else 4
        shapes.append(parse_shape(",".join(words[:taken])))
        del words[:taken]
    return shapes
