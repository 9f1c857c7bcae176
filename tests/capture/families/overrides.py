"""What a family needs beyond the rules of `configs.py` and `inputs.py`: one line each.

A line holds fields of the config, those of a part as "text_config.hidden_size", and these names: `LENGTH`, how many
tokens there are; `MODEL`, the class, where the mapping names none that runs by itself; `GIVE`, a function of the config
that makes the inputs; `START`, one of the model; `MORE`, a function that changes those that were found.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.families.making import codes, drafted, noise, ones, patches, series, tokens, tracked

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
NTK = {"rope_type": "default", "rope_theta": 10000.0, "alpha": 1.0}
HYBRID = {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}
IMAGE_TOKEN = {"vocabulary_map": {"<image>": 9}}
INDEXER = {
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32},
    **{"indexer_budget": 8, "indexer_compress_ratio": 4},
}
SIDES = [[16, 16], [8, 8], [4, 4]]
TARGETS = {
    "GIVE": lambda c: {"pixel_values": noise(1, 3, 16, 32 * 16), "target_sizes": torch.full((2, 2), 4)},
}
CODEC = {"GIVE": lambda c: {"input_values": noise(2, 1, 3200), "input_features": noise(2, 10, 20)}}

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
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "encoder_config.hidden_size_global": 256,
        "decoder_config.hidden_size_global": 256,
        "MORE": lambda x: {**x, "use_cache": False},
    },
    "chameleon": IMAGE_TOKEN,
    "emu3": {**IMAGE_TOKEN, "vq_config.base_channels": 32},
    "blip-2": {"image_token_index": 9},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": MROPE}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}},
    "decision_transformer": {
        "GIVE": lambda c: {
            "states": noise(2, 4, c.state_dim),
            "actions": noise(2, 4, c.act_dim),
            "rewards": noise(2, 4, 1),
            "returns_to_go": noise(2, 4, 1),
            "timesteps": torch.arange(4).expand(2, 4),
        }
    },
    "deepseek_ocr2": {
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.num_experts_per_tok": 2,
        "text_config.moe_intermediate_size": 16,
        "vision_config.sam_config.downsample_channels": [64, 512],
    },
    "dots3_note": {"vision_config.mlp_layer_types": ["dense", "dense"], "audio_config.adapter_input_size": 160},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config.num_filters": 4,
        "semantic_tokenizer_encoder_config.num_filters": 4,
    },
    "vibevoice": {"audio_config.num_filters": 4, "semantic_model_config.num_filters": 4},
    "diffusion_gemma": {
        "text_config.num_experts": 4,
        "text_config.top_k_experts": 2,
        "text_config.moe_intermediate_size": 16,
    },
    "depth_pro": {
        "patch_size": 64,
        "intermediate_hook_ids": [1, 0],
        "image_model_config.image_size": 64,
        "patch_model_config.image_size": 64,
        "fov_model_config.image_size": 64,
        "GIVE": lambda c: {"pixel_values": noise(2, 3, 256, 256)},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "codegen": {"rotary_dim": 16},
    "ministral": {"head_dim": 16},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    "instructblip": {"image_token_index": 9},
    "instructblipvideo": {"video_token_index": 9},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lxmert": {
        "MORE": lambda x: {**x, "visual_feats": noise(2, 5, 256), "visual_pos": noise(2, 5, 4).sigmoid()},
    },
    "muse_glimmer_assistant": {"START": drafted},
    "oneformer": {"mask_dim": 32, "GIVE": lambda c: {"pixel_values": noise(2, 3, 64, 64), "task_inputs": tokens(77)}},
    "timesfm": {
        "context_length": 128,
        "GIVE": lambda c: {
            "past_values": noise(2, 128),
            "past_values_padding": ones(2, 128) * 0,
            "freq": ones(2, 1) * 0,
        },
    },
    "timesfm2_5": {"GIVE": lambda c: {"past_values": noise(2, 128)}},
    "xmod": {"default_language": "en_XX"},
    "speech-encoder-decoder": {"GIVE": lambda c: {"input_values": noise(2, 4000), "decoder_input_ids": tokens(7)}},
    "tvp": {
        "max_img_size": 64,
        "visual_prompt_size": 16,
        "GIVE": lambda c: {"input_ids": tokens()[:1], "pixel_values": noise(1, c.num_frames, 3, 64, 64)},
    },
    "minicpm_ocr_vision": TARGETS,
    "minicpmv4_7_vision": TARGETS,
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0, "text_config.vocab_size_per_layer_input": 0},
    "idefics": {
        "GIVE": lambda c: {
            "input_ids": tokens(),
            "pixel_values": noise(2, 1, 3, 56, 56),
            "image_attention_mask": ones(2, 12, 1),
        }
    },
    "inkling2_vision": {
        "GIVE": lambda c: {"pixel_values": noise(8, 40, 40, 3), "image_grid_thw": torch.tensor([[1, 2, 2]] * 2)}
    },
    "kosmos-2": {
        "latent_query_num": 4,
        "GIVE": lambda c: {
            "input_ids": tokens(),
            "pixel_values": noise(2, 3, 56, 56),
            "image_embeds_position_mask": ones(2, 12) * (torch.arange(12) // 4 == 1),
        },
    },
    "kyutai_speech_to_text": {"GIVE": lambda c: {"input_ids": tokens(12 * 33).view(2, 12, 33)}},
    "longcat_flash": {"zero_expert_num": 4},
    "lw_detr": {"projector_scale_factors": [1.0], "num_queries": 8},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "muse_spark": {"audio_config.num_hidden_layers": 4},
    "muse_spark_audio": {"num_hidden_layers": 4, "GIVE": lambda c: {"input_values": noise(2, 3840)}},
    "nemotron_h": {"moe_intermediate_size": 64},
    "nemotron_h_omni": {"text_config.moe_intermediate_size": 64},
    "neucodec": CODEC,
    "xcodec2": CODEC,
    "pi0": {
        "GIVE": lambda c: {
            "input_ids": tokens(),
            "pixel_values": noise(2, 1, 3, 56, 56),
            "pixel_attention_mask": ones(2, 1),
            "action_embeds": noise(2, 4, c.dit_config.hidden_size),
        }
    },
    "pp_doclayout_v2": {
        "backbone_config.hidden_sizes": [256, 512, 1024, 2048],
        "num_queries": 30,
        "class_thresholds": [0.5] * 25,
        "class_order": list(range(25)),
    },
    "qwen2_5_omni_thinker": {"text_config.rope_parameters": MROPE},
    "qwen3_omni_moe_thinker": {
        "text_config.rope_parameters": MROPE,
        "vision_config.num_heads": 2,
        "vision_config.out_hidden_size": 256,
        "text_config.num_attention_heads": 16,
    },
    "qwen4_exp_text": INDEXER,
    "qwen4_exp": {f"text_config.{name}": x for name, x in INDEXER.items()},
    "step3p7": {"text_config.sliding_window": 4},
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,
        "num_queries": 20,
        "vision_features_channels": [32, 32, 32],
        "GIVE": lambda c: {
            "pixel_values": noise(2, 3, 64, 64),
            "classes_input_ids": tokens().repeat(2, 1),
            "classes_attention_mask": ones(4, 12),
            "tasks_input_ids": tokens(),
            "tasks_attention_mask": ones(2, 12),
            "classes_structure": ones(2) * 2,
        },
    },
    "jev": {
        "GIVE": lambda c: {
            "input_ids": tokens()[:1],
            "marks": torch.tensor([[4, 9]]),
            "num_options": torch.tensor([[2, 2]]),
            "question_type_ids": torch.tensor([[0, 0]]),
        },
    },
    "uvdoc": {"backbone_config.out_features": [f"stage{i}" for i in range(1, 7)]},
    "pp_ocrv6_small_det": {"layer_list_out_channels": [48, 96, 192, 384]},
    "qwen3_omni_moe": {
        "talker_config.text_config.shared_expert_intermediate_size": 16,
        "talker_config.spatial_merge_size": 2,
    },
    "kimi_k25_vision": {"num_attention_heads": 2},
    "rf_detr": {"backbone_config.model_type": "rf_detr_dinov2", "num_queries": 8},
    "vitmatte": {"hidden_size": 96, "convstream_hidden_sizes": [6, 12, 24], "fusion_hidden_sizes": [32, 16, 8, 4]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam2": {
        "vision_config.backbone_config.embed_dim_per_stage": [12, 24, 48, 96],
        "vision_config.backbone_channel_list": [96, 48, 24, 12],
        "vision_config.backbone_feature_sizes": SIDES,
        "prompt_encoder_config.image_size": 64,
    },
    "sam3_tracker": {"vision_config.backbone_feature_sizes": SIDES, "prompt_encoder_config.image_size": 56},
    "edgetam_video": {
        "image_size": 64,
        "memory_attention_rope_feat_sizes": [4, 4],
        "memory_attention_rope_k_sizes": [2, 2],
        "perceiver_resampler_num_latents": 8,
        "perceiver_resampler_num_latents_2d": 4,
        "vision_config.backbone_feature_sizes": SIDES,
        "prompt_encoder_config.image_size": 64,
        "START": tracked("edgetam_video", "EdgeTamVideoInferenceSession", 64),
    },
    "sam2_video": {
        "image_size": 64,
        "memory_attention_rope_feat_sizes": [4, 4],
        "vision_config.backbone_feature_sizes": SIDES,
        "prompt_encoder_config.image_size": 64,
        "START": tracked("sam2_video", "Sam2VideoInferenceSession", 64),
    },
    "sam3_tracker_video": {
        "image_size": 56,
        "memory_attention_rope_feat_sizes": [4, 4],
        "vision_config.backbone_feature_sizes": SIDES,
        "prompt_encoder_config.image_size": 56,
        "START": tracked("sam3_tracker_video", "Sam3TrackerVideoInferenceSession", 56),
    },
    "seggpt": {
        "image_size": [128, 64],
        "intermediate_hidden_state_indices": [0, 0, 1, 1],
        "merge_index": 0,
        "GIVE": lambda c: dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), noise(2, 3, 64, 64)),
    },
    "shieldgemma2": {"mm_tokens_per_image": 4, "yes_token_index": 10, "no_token_index": 11},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "voxtral_realtime": {"LENGTH": 8},
    "voxtral_realtime_text": {"MORE": lambda x: {**x, "t_cond": noise(1, 1, 512)}},
    "mimi_decoder": {"GIVE": lambda c: {"latents": noise(2, c.hidden_size, 12)}},
    "pocket_tts_audio_tokenizer_decoder": {"GIVE": lambda c: {"latents": noise(2, c.hidden_size, 12)}},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 16},
    "patchtst": {"GIVE": lambda c: {"past_values": noise(2, c.context_length, c.num_input_channels)}},
    "patchtsmixer": {"GIVE": lambda c: {"past_values": noise(2, c.context_length, c.num_input_channels)}},
    "pix2struct": {"GIVE": lambda c: {"flattened_patches": patches(c.vision_config), "decoder_input_ids": tokens(7)}},
    "speecht5": {
        "GIVE": lambda c: {
            "input_values": noise(2, 12, c.hidden_size),
            "decoder_input_values": noise(2, 7, c.hidden_size),
        }
    },
    "clap": {"GIVE": lambda c: {"input_features": noise(2, 1, 1001, 64), "input_ids": tokens(12)}},
    "musicgen": {"MODEL": "MusicgenForConditionalGeneration", "GIVE": codes},
    "musicgen_melody": {"MODEL": "MusicgenMelodyForConditionalGeneration", "GIVE": codes},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "esm": {"vocab_size": 40, "pad_token_id": 1, "mask_token_id": 32},
    "evolla": {
        "protein_encoder_config": {
            **{"vocab_size": 40, "pad_token_id": 1, "mask_token_id": 32, "hidden_size": 64, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "intermediate_size": 128},
        },
        "aligner_num_add_layers": 1,
        "resampler_depth": 1,
        "num_hidden_layers": 2,
        "MORE": lambda x: {**x, "protein_input_ids": tokens(12, 30), "protein_attention_mask": ones(2, 12)},
    },
    # The first and the last layer of these have no attention.
    "sam3_lite_text": {"text_config.num_hidden_layers": 4},
    "sam3_lite_text_text_model": {"num_hidden_layers": 4},
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},
    "vibevoice_acoustic_tokenizer_decoder": {
        "num_filters": 4,
        "GIVE": lambda c: {"hidden_states": noise(2, c.hidden_size, 4)},
    },
    "vibevoice_acoustic_tokenizer_encoder": {
        "num_filters": 4,
        "GIVE": lambda c: {"hidden_states": noise(2, 1, 3200)},
    },
    "granite4_vision": {
        "image_grid_pinpoints": [[64, 64]],
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [1],
    },
    "autoformer": {"prediction_length": 12, "label_length": 3, "moving_average": 5, "GIVE": series},
    "informer": {"prediction_length": 6, "GIVE": series},
    "time_series_transformer": {"prediction_length": 6, "GIVE": series},
    "glm4v_text": {"rope_parameters": MROPE},
    "glm4v_moe_text": {"rope_parameters": MROPE, "head_dim": 32},
    "glm_image_text": {"rope_parameters": MROPE},
    "glm4v": {"text_config.rope_parameters": MROPE},
    "glm46v": {"text_config.rope_parameters": MROPE},
    "glmga": {"text_config.rope_parameters": MROPE},
    "glm4v_moe": {"text_config.rope_parameters": MROPE, "text_config.head_dim": 32},
    "ernie4_5_vl_moe": {"text_config.rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]}},
    "glm_image": {"text_config.rope_parameters": MROPE},
    "granitemoehybrid": HYBRID,
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16, "rope_parameters": MROPE},
    "hunyuan_vl": {"text_config.head_dim": 16, "text_config.rope_parameters": MROPE},
    "fun_asr_nano_encoder": {
        "GIVE": lambda c: {"input_features": noise(2, 20, c.input_size), "input_features_mask": ones(2, 20)}
    },
    "gemma3n_audio": {"GIVE": lambda c: {"audio_mel": noise(2, 64, 128), "audio_mel_mask": ones(2, 64) == 0}},
    "granite_speech5_ctc": {"GIVE": lambda c: {"input_features": noise(2, 40, 320)}},
    "granite_speech5_encoder": {"GIVE": lambda c: {"input_features": noise(2, 40, 320)}},
}
