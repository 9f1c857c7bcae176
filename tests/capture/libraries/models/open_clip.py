"""open_clip: CLIP with its own transformers, and CoCa."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called, image

VISION = {"layers": 2, "width": 32, "head_width": 8, "image_size": 32, "patch_size": 8}
TEXT = {"context_length": 12, "vocab_size": 50, "width": 32, "heads": 4, "layers": 2}


def cases() -> Cases:
    import open_clip

    ids = torch.randint(1, 50, (2, 12))

    def clip(vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, cls: Any = None) -> Case:
        made = (cls or open_clip.CLIP)(
            embed_dim=16, vision_cfg={**VISION, **(vision or {})}, text_cfg={**TEXT, **(text or {})}
        )
        return called(made, image(32), ids)

    def coca() -> Case:
        decoder = {**TEXT, "attn_pooler_heads": 4}
        pooled = {**VISION, "attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 6}
        text = {**TEXT, "embed_cls": True, "output_tokens": True}
        return called(
            open_clip.CoCa(
                embed_dim=32, vision_cfg={**pooled, "output_tokens": True}, text_cfg=text, multimodal_cfg=decoder
            ),
            image(32),
            ids[:1, :-1],
        )

    return {
        "CLIP": clip,
        "CLIP, scaled cosine attention": lambda: clip(
            text={"block_type": "custom", "scaled_cosine_attn": True, "scale_heads": True},
            vision={"block_type": "custom", "scaled_cosine_attn": True, "scale_heads": True},
        ),
        "CLIP, qk norm": lambda: clip(vision={"block_type": "custom", "qk_norm": True}),
        "CLIP, attentional pool": lambda: clip(
            vision={"attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 6}
        ),
        "CLIP, ResNet with attention pool": lambda: clip(vision={"layers": [1, 1, 1, 1], "width": 8, "head_width": 8}),
        "CLIP, text without causal mask": lambda: clip(text={"no_causal_mask": True, "pool_type": "last"}),
        "CoCa": coca,
    }
