"""KerasHub: its attention layers and backbones, on torch."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases

SMALL = {"vocabulary_size": 50, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 32}
GROUPED = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 32,
    "intermediate_dim": 32,
}
GEMMA = {**GROUPED, "head_dim": 8}


def cases() -> Cases:
    import keras_hub
    from keras_hub import layers, models

    ids = torch.randint(1, 50, (2, 7))
    real = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    x, context = torch.randn(2, 7, 32), torch.randn(2, 5, 32)

    def layer(name: str, *args: Any, given: dict[str, Any], **options: Any) -> Case:
        made = getattr(layers, name)(*args, **options)
        made(**given)
        return made, given

    def backbone(name: str, options: dict[str, Any], given: Any = None, **more: Any) -> Case:
        inputs = {"token_ids": ids, "padding_mask": real} if given is None else given
        return getattr(models, name)(**options, **more), {"inputs": inputs}

    segments = {"token_ids": ids, "padding_mask": real, "segment_ids": torch.zeros_like(ids)}
    pair = {
        **{"encoder_token_ids": ids, "encoder_padding_mask": real},
        **{"decoder_token_ids": ids, "decoder_padding_mask": torch.ones_like(ids)},
    }
    assert keras_hub
    return {
        "TransformerEncoder": lambda: layer("TransformerEncoder", 16, 4, given={"inputs": x, "padding_mask": real}),
        "TransformerDecoder": lambda: layer(
            "TransformerDecoder", 16, 4, given={"decoder_sequence": x, "encoder_sequence": context}
        ),
        "CachedMultiHeadAttention": lambda: layer("CachedMultiHeadAttention", 4, 8, given={"query": x, "value": x}),
        "FNetEncoder": lambda: layer("FNetEncoder", 16, given={"inputs": x}),
        "DebertaV3Backbone": lambda: backbone("DebertaV3Backbone", SMALL, bucket_size=4),
        "XLNetBackbone": lambda: backbone("XLNetBackbone", SMALL, segments),
        "RoformerV2Backbone": lambda: backbone(
            "RoformerV2Backbone", {**SMALL, "head_size": 8}, {"token_ids": ids, "segment_ids": torch.zeros_like(ids)}
        ),
        "GPTNeoXBackbone": lambda: backbone("GPTNeoXBackbone", SMALL),
        "BloomBackbone": lambda: backbone("BloomBackbone", SMALL),
        "Gemma2": lambda: backbone(
            "GemmaBackbone",
            GEMMA,
            attention_logit_soft_cap=50.0,
            final_logit_soft_cap=30.0,
            use_sliding_window_attention=True,
            sliding_window_size=3,
        ),
        "FalconBackbone": lambda: backbone(
            "FalconBackbone",
            {
                "vocabulary_size": 50,
                "num_layers": 2,
                "num_attention_heads": 4,
                "hidden_dim": 32,
                "intermediate_dim": 32,
            },
        ),
        "GptOssBackbone": lambda: backbone(
            "GptOssBackbone", {**GROUPED, "head_dim": 8, "num_experts": 2, "top_k": 1, "sliding_window": 4}
        ),
        "T5Backbone": lambda: backbone("T5Backbone", SMALL, pair),
        "WhisperBackbone": lambda: backbone(
            *("WhisperBackbone", SMALL),
            {
                "encoder_features": torch.randn(1, 16, 80),
                "decoder_token_ids": ids[:1],
                "decoder_padding_mask": torch.ones(1, 7),
            },
            max_encoder_sequence_length=16,
            max_decoder_sequence_length=8,
        ),
        "ViTDetBackbone": lambda: backbone(
            *(
                "ViTDetBackbone",
                {"image_shape": (64, 64, 3), "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_size": 32},
            ),
            torch.randn(1, 64, 64, 3),
            intermediate_dim=32,
            global_attention_layer_indices=[1],
            window_size=2,
        ),
    }
