"""YaRN's mscale ** 2 is left out of the softmax scale of multi-head latent attention.

onnxruntime/mobius #548 (2026)
https://github.com/onnxruntime/mobius/pull/548
"""
import math
import torch
import torch.nn as nn


def yarn_get_mscale(scale=1.0, mscale=1.0):
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _build(rev):
    class DeepseekV2Attention(nn.Module):
        """Multi-head latent attention as in DeepSeek-V2/V3, causal; forward(hidden_states), (B, T, C).

        rope_scaling follows the published configuration: with mscale_all_dim the softmax scale is
        qk_head_dim ** -0.5 * yarn_get_mscale(factor, mscale_all_dim) ** 2.
        """

        def __init__(self, hidden_size=64, num_heads=4, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                     v_head_dim=12, rope_scaling=None):
            super().__init__()
            rope_scaling = rope_scaling or {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
            self.num_heads, self.nope, self.rope, self.v_head_dim = (num_heads, qk_nope_head_dim, qk_rope_head_dim,
                                                                     v_head_dim)
            self.kv_lora_rank = kv_lora_rank
            self.q_proj = nn.Linear(hidden_size, num_heads * (self.nope + self.rope), bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_lora_rank + self.rope, bias=False)
            self.kv_a_layernorm = nn.RMSNorm(kv_lora_rank)
            self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * (self.nope + v_head_dim), bias=False)
            self.o_proj = nn.Linear(num_heads * v_head_dim, hidden_size, bias=False)
            self.scaling = (self.nope + self.rope) ** -0.5
            factor = rope_scaling["factor"]
            if rev == 2:
                self.scaling = self.scaling * yarn_get_mscale(factor, rope_scaling["mscale_all_dim"]) ** 2
            self.attention_factor = (yarn_get_mscale(factor, rope_scaling["mscale"])
                                     / yarn_get_mscale(factor, rope_scaling["mscale_all_dim"]))
            self.register_buffer("inv_freq", 1e4 ** (-torch.arange(0, self.rope, 2).float() / self.rope), persistent=False)

        def apply_rope(self, x):
            f = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), self.inv_freq)
            cos, sin = (torch.cat((t, t), -1) * self.attention_factor for t in (f.cos(), f.sin()))
            x1, x2 = x.chunk(2, -1)
            return x * cos + torch.cat((-x2, x1), -1) * sin

        def forward(self, hidden_states):
            B, T, _ = hidden_states.shape
            q = self.q_proj(hidden_states).view(B, T, self.num_heads, -1).transpose(1, 2)
            q_nope, q_pe = q.split([self.nope, self.rope], -1)
            c, k_pe = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.rope], -1)
            kv = self.kv_b_proj(self.kv_a_layernorm(c)).view(B, T, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.nope, self.v_head_dim], -1)
            k_pe = self.apply_rope(k_pe[:, None]).expand(-1, self.num_heads, -1, -1)
            q = torch.cat((q_nope, self.apply_rope(q_pe)), -1)
            k = torch.cat((k_nope, k_pe), -1)
            s = q @ k.transpose(2, 3) * self.scaling
            s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
            return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))

    torch.manual_seed(0)
    return DeepseekV2Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
