"""Models of diffusers, tiny and with fixed weights, and the whole inputs of one forward of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import diffusers
import torch

Inputs = dict[str, Any]


class Tiny(NamedTuple):
    """How to build a model and its inputs, and what its attention exchanges."""

    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], Inputs]
    batch: int
    heads: int
    head_dim: int
    streams: tuple[int, ...]  # tokens of each stream that is cut
    attentions: int  # how many go through the group in a forward


def _source() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _loud(model: torch.nn.Module) -> torch.nn.Module:
    """Larger weights where values, and what attention made of them, are projected, so that attention is seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("to_v.weight", "to_out.0.weight", "add_v_proj.weight")):
                parameter.mul_(4.0)
    return model.eval()


def _wan(name: str, heads: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = getattr(diffusers, name)(
        num_attention_heads=heads,
        attention_head_dim=16,
        num_layers=2,
        ffn_dim=32,
        text_dim=16,
        freq_dim=16,
    )
    return _loud(model)


def _wan_inputs(frames: int, height: int, width: int, timestep_per_token: bool = False) -> Inputs:
    source = _source()
    tokens = frames * (height // 2) * (width // 2)
    return {
        "hidden_states": torch.randn(2, 16, frames, height, width, generator=source),
        "encoder_hidden_states": torch.randn(2, 7, 16, generator=source),
        "timestep": torch.arange(2 * tokens).reshape(2, tokens) if timestep_per_token else torch.tensor([5, 700]),
    }


def _flux() -> torch.nn.Module:
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=16,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 6, 6),
        guidance_embeds=False,
    )
    return _loud(model)


def _flux_inputs(image: int, text: int) -> Inputs:
    source = _source()
    return {
        "hidden_states": torch.randn(1, image, 8, generator=source),
        "encoder_hidden_states": torch.randn(1, text, 16, generator=source),
        "pooled_projections": torch.randn(1, 8, generator=source),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(0, 5, (image, 3), generator=source).float(),
        "txt_ids": torch.zeros(text, 3),
    }


def _qwen() -> torch.nn.Module:
    torch.manual_seed(0)
    model = diffusers.QwenImageTransformer2DModel(
        in_channels=8,
        out_channels=4,
        patch_size=1,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
    )
    return _loud(model)


def qwen_inputs(text: int, mask: torch.Tensor | None = None) -> Inputs:
    source = _source()
    return {
        "hidden_states": torch.randn(1, 15, 8, generator=source),
        "encoder_hidden_states": torch.randn(1, text, 16, generator=source),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 3, 5)]],
    }


def _minimax() -> torch.nn.Module:
    torch.manual_seed(0)
    model = diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=3,
        attention_head_dim=96,
        hidden_size=32,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=32,
        in_channels=4,
        audio_in_channels=6,
        text_dim=8,
        freq_dim=16,
        time_embed_hidden_dim=16,
        time_embed_dim=8,
        rope_freq_dim=16,
    )
    return _loud(model)


def _minimax_inputs(text: int, video: int, audio: int) -> Inputs:
    source = _source()
    tokens = text + video + audio
    return {
        "hidden_states": torch.randn(1, video, 16, generator=source),
        "audio_hidden_states": torch.randn(1, audio, 6, generator=source),
        "encoder_hidden_states": torch.randn(1, text, 8, generator=source),
        "timestep": torch.tensor([0.3, 0.7]),
        "timestep_indices": torch.randint(0, 2, (tokens,), generator=source),
        "token_tags": torch.tensor([1] * text + [0] * video + [2] * audio),
        "position_ids": torch.randint(0, 6, (tokens, 3), generator=source),
        "video_indices": torch.arange(text, text + video),
        "audio_indices": torch.arange(text + video, tokens),
        "text_indices": torch.arange(text),
    }


def ltx() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=3,
        attention_head_dim=16,
        cross_attention_dim=48,
        num_layers=1,
        caption_channels=16,
    ).eval()


def ltx_inputs() -> Inputs:
    source = _source()
    return {
        "hidden_states": torch.randn(1, 12, 8, generator=source),
        "encoder_hidden_states": torch.randn(1, 6, 16, generator=source),
        "timestep": torch.tensor([5]),
        "encoder_attention_mask": None,
        "num_frames": 1,
        "height": 3,
        "width": 4,
    }


TINY = {
    "wan": Tiny(lambda: _wan("WanTransformer3DModel", 12), lambda: _wan_inputs(2, 6, 12), 2, 12, 16, (36,), 2),
    "wan, odd tokens": Tiny(
        lambda: _wan("WanTransformer3DModel", 12), lambda: _wan_inputs(3, 6, 10), 2, 12, 16, (45,), 2
    ),
    "wan, fewer tokens than ranks": Tiny(
        lambda: _wan("WanTransformer3DModel", 5), lambda: _wan_inputs(1, 2, 4), 2, 5, 16, (2,), 2
    ),
    "wan, timestep a token": Tiny(
        lambda: _wan("WanTransformer3DModel", 6),
        lambda: _wan_inputs(3, 6, 10, timestep_per_token=True),
        2,
        6,
        16,
        (45,),
        2,
    ),
    "chronoedit": Tiny(
        lambda: _wan("ChronoEditTransformer3DModel", 6), lambda: _wan_inputs(3, 6, 10), 2, 6, 16, (45,), 2
    ),
    "minimax": Tiny(_minimax, lambda: _minimax_inputs(5, 12, 6), 1, 3, 96, (23,), 2),
    "flux": Tiny(_flux, lambda: _flux_inputs(25, 7), 1, 3, 16, (25, 7), 2),
    "qwen": Tiny(_qwen, lambda: qwen_inputs(7), 1, 3, 16, (15, 7), 2),
}
