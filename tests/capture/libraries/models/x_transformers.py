"""x-transformers: options of its attention."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True},
    "dynamic bias": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "memory keys": {"attn_num_mem_kv": 3},
    "grouped": {"attn_kv_heads": 2},
    "one key head": {"attn_one_kv_head": True},
    "qk norm": {"attn_qk_norm": True},
    "sinks": {"attn_head_learned_sink": True},
    "zero key": {"attn_add_zero_kv": True},
    "topk": {"attn_sparse_topk": 2},
    "talking heads": {"attn_pre_talking_heads": True},
    "talking weights": {"attn_post_talking_heads": True},
    "selective": {"attn_selective": True},
    "sigmoid": {"attn_sigmoid": True},
    "hard": {"attn_hard": True},
    "l2": {"attn_l2_distance": True},
    "shifted": {"shift_tokens": 1},
    "value width": {"attn_value_dim_head": 6},
    "gated values": {"attn_gate_values": True},
    "softclamp": {"attn_softclamp_logits": True},
    "softclamp after a bias": {"attn_softclamp_logits": True, "alibi_pos_bias": True},
    "data dependent alibi": {"attn_data_dependent_alibi": True},
    "orthogonal values": {"attn_orthog_projected_values": True},
    "custom rotary and cope": {"attn_use_cope": True},
}


def cases() -> Cases:
    import x_transformers

    def make(options: dict[str, Any]) -> Case:
        layers = x_transformers.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
        model = x_transformers.TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers)
        return called(model, torch.randint(0, 20, (2, 6)))

    return {name: lambda options=options: make(options) for name, options in OPTIONS.items()}
