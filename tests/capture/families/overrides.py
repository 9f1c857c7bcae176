"""What a family needs beyond the rules of `configs.py` and `inputs.py`: one line each.

A line holds fields of the config, those of a part as "text_config.hidden_size", and these names: `LENGTH`, how many
tokens there are; `MODEL`, the class, where the mapping names none that runs by itself; `GIVE`, a function of the config
that makes the inputs; `MORE`, a function that changes those that were found.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.families.making import noise, ones, series, tokens

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
NTK = {"rope_type": "default", "rope_theta": 10000.0, "alpha": 1.0}
HYBRID = {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}
IMAGE_TOKEN = {"vocabulary_map": {"<image>": 9}}

OVERRIDES: dict[str, dict[str, Any]] = {
    # Blocks, windows and chunks smaller than the input, so that they matter.
    "big_bird": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "LENGTH": 48},
    "bigbird_pegasus": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "LENGTH": 48},
    "canine": {"local_transformer_stride": 4, "upsampling_kernel_size": 4, "LENGTH": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "led": {
        "attention_window": 4,
        "MORE": lambda x: {**x, "global_attention_mask": ones(2, 12) * (torch.arange(12) < 2)},
    },
    "longformer": {
        "attention_window": 4,
        "MORE": lambda x: {**x, "global_attention_mask": ones(2, 12) * (torch.arange(12) < 2)},
    },
    "longt5": {"local_radius": 3, "global_block_size": 4},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 3},
    "reformer": {
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 4,
        "num_hashes": 2,
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds": False,
    },
    # What the defaults leave open, or where they do not fit each other.
    "aya_vision": {"vision_config.num_attention_heads": 12},
    "bamba": {"attn_layer_indices": [0]},
    "bailing_hybrid": HYBRID,
    "blip_2_qformer": {
        "GIVE": lambda c: {
            "query_embeds": noise(2, 5, c.hidden_size),
            "encoder_hidden_states": noise(2, 7, c.encoder_hidden_size),
        }
    },
    "blt": {"encoder_hash_byte_group_vocab": 500, "encoder_hash_byte_group_nb_functions": 1},
    "chameleon": IMAGE_TOKEN,
    "emu3": IMAGE_TOKEN,
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE}},
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "codegen": {"rotary_dim": 16},
    "clap": {"GIVE": lambda c: {"input_features": noise(2, 1, 1001, 64), "input_ids": tokens(12)}},
    "musicgen": {"MODEL": "MusicgenForConditionalGeneration"},
    "musicgen_melody": {"MODEL": "MusicgenMelodyForConditionalGeneration"},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"]},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "esm": {"vocab_size": 40, "pad_token_id": 1, "mask_token_id": 32},
    "evolla": {"protein_encoder_config.vocab_size": 40, "aligner_num_add_layers": 1, "num_hidden_layers": 2},
    "autoformer": {"prediction_length": 6, "GIVE": series},
    "informer": {"prediction_length": 6, "GIVE": series},
    "time_series_transformer": {"prediction_length": 6, "GIVE": series},
    "glm4v_text": {"rope_parameters": MROPE},
    "glm4v_moe_text": {"rope_parameters": MROPE, "head_dim": 16},
    "glm_image_text": {"rope_parameters": MROPE},
    "glm4v": {"text_config.rope_parameters": MROPE},
    "glm46v": {"text_config.rope_parameters": MROPE},
    "glmga": {"text_config.rope_parameters": MROPE},
    "glm4v_moe": {"text_config.rope_parameters": MROPE},
    "glm_image": {"text_config.rope_parameters": MROPE},
    "granitemoehybrid": HYBRID,
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "hunyuan_vl": {"text_config.head_dim": 16},
    "fun_asr_nano_encoder": {
        "GIVE": lambda c: {"input_features": noise(2, 20, c.input_size), "input_features_mask": ones(2, 20)}
    },
    "gemma3n_audio": {"GIVE": lambda c: {"audio_mel": noise(2, 64, 128), "audio_mel_mask": ones(2, 64) == 0}},
    "granite_speech5_ctc": {"GIVE": lambda c: {"input_features": noise(2, 40, 320)}},
    "granite_speech5_encoder": {"GIVE": lambda c: {"input_features": noise(2, 40, 320)}},
}
