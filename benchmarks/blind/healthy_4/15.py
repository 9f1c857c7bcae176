from typing import Optional, Tuple

import torch
from torch import nn


def create_sinusoidal_positions(num_pos: int, dim: int) -> torch.Tensor:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    sinusoid_inp = torch.einsum("i,j->ij", torch.arange(num_pos, dtype=torch.int64).float(), inv_freq)
    return torch.cat((torch.sin(sinusoid_inp), torch.cos(sinusoid_inp)), dim=1)


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    x = torch.stack((-x2, x1), dim=-1)
    return x.flatten(-2)


def apply_rotary_pos_emb(tensor: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    sin = torch.repeat_interleave(sin[:, :, None, :], 2, 3)
    cos = torch.repeat_interleave(cos[:, :, None, :], 2, 3)
    return (tensor * cos) + (rotate_every_two(tensor) * sin)


class GPTJAttention(nn.Module):
    """GPT-J attention: interleaved rotary on ``rotary_dim`` channels, scores in float32, no projection bias."""

    def __init__(
        self,
        n_embd: int = 256,
        n_head: int = 4,
        rotary_dim: int = 32,
        n_positions: int = 512,
        attn_pdrop: float = 0.0,
        resid_pdrop: float = 0.0,
    ):
        super().__init__()
        self.embed_dim = n_embd
        self.num_heads = n_head
        self.head_dim = n_embd // n_head
        if self.head_dim * n_head != n_embd:
            raise ValueError("embed_dim must be divisible by num_attention_heads")
        self.rotary_dim = rotary_dim
        causal = torch.tril(torch.ones((n_positions, n_positions), dtype=torch.bool))
        self.register_buffer("bias", causal.view(1, 1, n_positions, n_positions), persistent=False)
        self.register_buffer("embed_positions", create_sinusoidal_positions(n_positions, rotary_dim), persistent=False)

        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        self.q_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.k_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.v_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.out_proj = nn.Linear(n_embd, n_embd, bias=False)

    def _attn(self, query, key, value):
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]

        attn_weights = torch.matmul(query.float(), key.float().transpose(-1, -2)) / self.head_dim**0.5
        attn_weights = torch.where(causal_mask, attn_weights, torch.finfo(attn_weights.dtype).min)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1).to(value.dtype)
        return torch.matmul(self.attn_dropout(attn_weights), value)

    def forward(
        self,
        hidden_states: torch.Tensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        bsz, seq, _ = hidden_states.shape
        query = self.q_proj(hidden_states).view(bsz, seq, self.num_heads, self.head_dim)
        key = self.k_proj(hidden_states).view(bsz, seq, self.num_heads, self.head_dim)
        value = self.v_proj(hidden_states).view(bsz, seq, self.num_heads, self.head_dim).transpose(1, 2)

        past = 0 if layer_past is None else layer_past[0].size(-2)
        sincos = self.embed_positions[None, past : past + seq].to(query.dtype)
        sin, cos = torch.split(sincos, sincos.shape[-1] // 2, dim=-1)

        k_rot, k_pass = key[..., : self.rotary_dim], key[..., self.rotary_dim :]
        q_rot, q_pass = query[..., : self.rotary_dim], query[..., self.rotary_dim :]
        key = torch.cat([apply_rotary_pos_emb(k_rot, sin, cos), k_pass], dim=-1).transpose(1, 2)
        query = torch.cat([apply_rotary_pos_emb(q_rot, sin, cos), q_pass], dim=-1).transpose(1, 2)

        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        out = self._attn(query, key, value).transpose(1, 2).reshape(bsz, seq, self.embed_dim)
        return self.resid_dropout(self.out_proj(out)), present
