"""The YaRN factor mscale squared is never multiplied into MLA's softmax scale.

onnxruntime/mobius #548 (2026)
https://github.com/onnxruntime/mobius/pull/548
"""
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class DeepseekV2Config:
    hidden_size: int = 48
    num_attention_heads: int = 4
    kv_lora_rank: int = 16
    qk_nope_head_dim: int = 8
    qk_rope_head_dim: int = 4
    v_head_dim: int = 8
    rope_theta: float = 10000.0
    rope_scaling: dict = field(default_factory=lambda: {
        "type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707})


def yarn_get_mscale(scale=1, mscale=1):
    if scale <= 1:
        return 1.0
    return 0.1 * mscale * math.log(scale) + 1.0


class DeepseekV2YarnRotaryEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim, scaling = config.qk_rope_head_dim, config.rope_scaling
        inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        # the cos/sin tables are rescaled by the ratio of the two mscales
        self.mscale = (yarn_get_mscale(scaling["factor"], scaling["mscale"])
                       / yarn_get_mscale(scaling["factor"], scaling["mscale_all_dim"]))

    def forward(self, seq_len):
        freqs = torch.outer(torch.arange(seq_len, device=self.inv_freq.device).float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos() * self.mscale, emb.sin() * self.mscale


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class _DeepseekV2AttentionBase(nn.Module):
    """Multi-head latent attention (causal), softmax scale as in `yarn_apply_mscale` of DeepSeek-V2."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.q_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.q_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(config.hidden_size, config.kv_lora_rank + config.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(config.kv_lora_rank)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, self.num_heads * (config.qk_nope_head_dim + config.v_head_dim), bias=False)
        self.o_proj = nn.Linear(self.num_heads * config.v_head_dim, config.hidden_size, bias=False)
        self.rotary_emb = DeepseekV2YarnRotaryEmbedding(config)

    def forward(self, hidden_states):
        config = self.config
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = q.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)

        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        compressed_kv, k_pe = compressed_kv.split([config.kv_lora_rank, config.qk_rope_head_dim], dim=-1)
        k_pe = k_pe.view(bsz, q_len, 1, config.qk_rope_head_dim).transpose(1, 2)
        kv = self.kv_b_proj(self.kv_a_layernorm(compressed_kv))
        kv = kv.view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        k_nope, value_states = kv.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)

        cos, sin = self.rotary_emb(q_len)
        q_pe = q_pe * cos + rotate_half(q_pe) * sin
        k_pe = k_pe * cos + rotate_half(k_pe) * sin
        query_states = torch.cat((q_nope, q_pe), dim=-1)
        key_states = torch.cat((k_nope, k_pe.expand(-1, self.num_heads, -1, -1)), dim=-1)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale
        causal = torch.ones(q_len, q_len, dtype=torch.bool, device=hidden_states.device).tril()
        attn_weights = attn_weights.masked_fill(~causal, float("-inf")).softmax(dim=-1)
        attn_output = torch.matmul(attn_weights, value_states)
        return self.o_proj(attn_output.transpose(1, 2).reshape(bsz, q_len, -1))


def broken() -> nn.Module:
    class DeepseekV2Attention(_DeepseekV2AttentionBase):
        def __init__(self, config):
            super().__init__(config)
            # mscale is handled by the rotary embedding's attention_scaling
            self.softmax_scale = self.q_head_dim ** (-0.5)

    torch.manual_seed(0)
    return DeepseekV2Attention(DeepseekV2Config())


def fixed() -> nn.Module:
    class DeepseekV2Attention(_DeepseekV2AttentionBase):
        def __init__(self, config):
            super().__init__(config)
            self.softmax_scale = self.q_head_dim ** (-0.5)
            mscale_all_dim = config.rope_scaling.get("mscale_all_dim", 0)
            if mscale_all_dim:
                mscale = yarn_get_mscale(config.rope_scaling["factor"], mscale_all_dim)
                self.softmax_scale = self.softmax_scale * mscale * mscale

    torch.manual_seed(0)
    return DeepseekV2Attention(DeepseekV2Config())
