"""The causal mask and the padding masks, all filled with finfo.min, are added up and overflow to -inf, so rows of padding become NaN and poison the rest.

huggingface/transformers #18057 (2022)
https://github.com/huggingface/transformers/pull/18057
"""
import torch
import torch.nn as nn


def _build(rev):
    class OPTAttention(nn.Module):
        """Causal attention; forward(hidden_states, attention_mask=None): (B, T, C); attention_mask (B, T), 1 token and
        0 padding (on either side). Outputs at padding mean nothing."""

        def __init__(self, embed_dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def _prepare_decoder_attention_mask(self, attention_mask, x):
            B, T, _ = x.shape
            lo = torch.finfo(x.dtype).min
            mask = torch.full((T, T), lo, dtype=x.dtype, device=x.device).triu(1)[None, None].expand(B, 1, T, T)
            if attention_mask is not None:
                pad = torch.zeros(B, 1, 1, T, dtype=x.dtype, device=x.device)
                pad = pad.masked_fill(attention_mask[:, None, None, :] == 0, lo)
                mask = mask + pad + pad.transpose(2, 3)
                if rev == 2:
                    mask = mask.clamp(min=lo)
            return mask

        def forward(self, hidden_states, attention_mask=None):
            B, T, C = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            w = q @ k.transpose(2, 3) * self.head_dim ** -0.5
            w = w + self._prepare_decoder_attention_mask(attention_mask, hidden_states)
            if rev == 2:
                w = w.clamp(min=torch.finfo(w.dtype).min)
            return self.out_proj((w.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    class OPTDecoder(nn.Module):
        """Two pre-norm layers, same arguments."""

        def __init__(self, embed_dim=32, num_layers=2):
            super().__init__()
            self.layers = nn.ModuleList(OPTAttention(embed_dim) for _ in range(num_layers))
            self.norms = nn.ModuleList(nn.LayerNorm(embed_dim) for _ in range(num_layers))

        def forward(self, hidden_states, attention_mask=None):
            for norm, layer in zip(self.norms, self.layers):
                hidden_states = hidden_states + layer(norm(hidden_states), attention_mask)
            return hidden_states

    torch.manual_seed(0)
    return OPTDecoder().to(torch.float16)


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(8)[None] >= torch.tensor([0, 3])[:, None]).long()
    return (torch.randn(2, 8, 32, dtype=torch.float16),), {"attention_mask": mask}
