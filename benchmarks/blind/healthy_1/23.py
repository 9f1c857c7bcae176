from typing import Optional, Tuple

import torch
from torch import nn


def create_sinusoidal_positions(num_pos: int, dim: int) -> torch.Tensor:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    sinusoid = torch.outer(torch.arange(num_pos, dtype=torch.float32), inv_freq)
    return torch.cat((torch.sin(sinusoid), torch.cos(sinusoid)), dim=1)


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary_pos_emb(tensor, sin, cos):
    sin = sin[:, :, None, :].repeat_interleave(2, dim=-1)
    cos = cos[:, :, None, :].repeat_interleave(2, dim=-1)
    return tensor * cos + rotate_every_two(tensor) * sin


class GPTJBlock(nn.Module):
    """GPT-J layer: attention and MLP both read the same `ln_1` output and are added to the residual at once.

    Only the first `rotary_dim` channels of each head are rotated. `attention_mask` is `(batch, total)`,
    1 = token and 0 = padding, where `total` includes the cached positions.
    """

    def __init__(self, n_embd=128, n_head=4, rotary_dim=16, n_positions=512, n_inner=None,
                 attn_pdrop=0.0, resid_pdrop=0.0, layer_norm_epsilon=1e-5):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.head_dim = n_embd // n_head
        assert rotary_dim % 2 == 0 and rotary_dim <= self.head_dim
        self.rotary_dim = rotary_dim
        n_inner = n_inner if n_inner is not None else 4 * n_embd

        self.ln_1 = nn.LayerNorm(n_embd, eps=layer_norm_epsilon)
        self.q_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.k_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.v_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.out_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.fc_in = nn.Linear(n_embd, n_inner)
        self.fc_out = nn.Linear(n_inner, n_embd)
        self.act = nn.GELU(approximate="tanh")
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        self.register_buffer("embed_positions", create_sinusoidal_positions(n_positions, rotary_dim), persistent=False)

    def _rotate(self, x, position_ids):
        sin, cos = self.embed_positions[position_ids].to(x.dtype).chunk(2, dim=-1)
        rot, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim:]
        return torch.cat([apply_rotary_pos_emb(rot, sin, cos), rest], dim=-1)

    def _attn(self, x, attention_mask, position_ids, layer_past):
        b, t, _ = x.shape
        # (b, t, heads, d): GPT-J rotates before the heads are moved forward
        q = self._rotate(self.q_proj(x).view(b, t, self.n_head, self.head_dim), position_ids).transpose(1, 2)
        k = self._rotate(self.k_proj(x).view(b, t, self.n_head, self.head_dim), position_ids).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.n_head, self.head_dim).transpose(1, 2)
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=-2)
            v = torch.cat((layer_past[1], v), dim=-2)

        total = k.size(-2)
        weights = torch.matmul(q.float(), k.float().transpose(-1, -2)) / self.head_dim ** 0.5
        keep = torch.ones(total, total, dtype=torch.bool, device=x.device).tril()[total - t: total, :total]
        weights = weights.masked_fill(~keep, torch.finfo(weights.dtype).min)
        if attention_mask is not None:
            pad = attention_mask[:, None, None, :] == 0
            weights = weights.masked_fill(pad, torch.finfo(weights.dtype).min)
        weights = self.attn_dropout(weights.softmax(dim=-1).to(v.dtype))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, -1)
        return self.resid_dropout(self.out_proj(out)), (k, v)

    def forward(
        self,
        hidden_states: torch.Tensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
    ):
        t = hidden_states.size(1)
        if position_ids is None:
            past = 0 if layer_past is None else layer_past[0].size(-2)
            position_ids = torch.arange(past, past + t, device=hidden_states.device)[None]
        residual = hidden_states
        h = self.ln_1(hidden_states)
        attn_output, present = self._attn(h, attention_mask, position_ids, layer_past)
        ff_output = self.resid_dropout(self.fc_out(self.act(self.fc_in(h))))
        return attn_output + ff_output + residual, present
