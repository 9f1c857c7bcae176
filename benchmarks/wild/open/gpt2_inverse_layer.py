"""The fused path ignores scale_attn_by_inverse_layer_idx and uses the kernel's default scale in every layer.

huggingface/transformers #44397 (2026)
https://github.com/huggingface/transformers/pull/44397
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class GPT2Attention(nn.Module):
        def __init__(self, n_embd, n_head, layer_idx, scale_attn_weights, scale_attn_by_inverse_layer_idx):
            super().__init__()
            self.num_heads, self.head_dim = n_head, n_embd // n_head
            self.scaling = self.head_dim ** -0.5 if scale_attn_weights else 1.0
            if scale_attn_by_inverse_layer_idx:
                self.scaling = self.scaling / float(layer_idx + 1)
            self.c_attn = nn.Linear(n_embd, 3 * n_embd)
            self.c_proj = nn.Linear(n_embd, n_embd)

        def forward(self, hidden_states):
            B, T, C = hidden_states.shape
            q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for t in self.c_attn(hidden_states).split(C, dim=2))
            kwargs = {} if rev == 1 else {"scale": self.scaling}
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **kwargs)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    class GPT2Model(nn.Module):
        """Causal stack, forward(input_ids).

        scale_attn_weights: divide the scores by sqrt(head_dim). scale_attn_by_inverse_layer_idx: additionally divide
        the scores of layer i (from 0) by i + 1.
        """

        def __init__(self, vocab_size=64, n_embd=32, n_head=4, n_layer=3, scale_attn_weights=True,
                     scale_attn_by_inverse_layer_idx=True):
            super().__init__()
            self.wte = nn.Embedding(vocab_size, n_embd)
            self.wpe = nn.Embedding(64, n_embd)
            self.h = nn.ModuleList(GPT2Attention(n_embd, n_head, i, scale_attn_weights, scale_attn_by_inverse_layer_idx)
                                   for i in range(n_layer))
            self.ln = nn.ModuleList(nn.LayerNorm(n_embd) for _ in range(n_layer))
            self.ln_f = nn.LayerNorm(n_embd)

        def forward(self, input_ids):
            h = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
            for ln, block in zip(self.ln, self.h):
                h = h + block(ln(h))
            return self.ln_f(h)

    torch.manual_seed(0)
    return GPT2Model()


def broken():
    return _build(1)


def fixed():
    return _build(2)
