"""Cross-attention is given the padding mask of the decoder's tokens instead of the encoder's.

keras-team/keras-io #1964 (2024)
https://github.com/keras-team/keras-io/issues/1964
"""
import torch
import torch.nn as nn


def _build(rev):
    class Attention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.scaling = num_heads, (embed_dim // num_heads) ** -0.5
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, kv, keep):
            B, T, C = x.shape
            q = (self.q_proj(x) * self.scaling).view(B, T, self.num_heads, -1).transpose(1, 2)
            k = self.k_proj(kv).view(B, kv.shape[1], self.num_heads, -1).transpose(1, 2)
            v = self.v_proj(kv).view(B, kv.shape[1], self.num_heads, -1).transpose(1, 2)
            w = (q @ k.transpose(-1, -2)).masked_fill(~keep, torch.finfo(q.dtype).min).softmax(-1)
            return self.out_proj((w @ v).transpose(1, 2).reshape(B, T, C))

    class DecoderLayer(nn.Module):
        """forward(hidden_states, encoder_hidden_states, attention_mask, encoder_attention_mask).

        Masks (B, T) and (B, S): 1 for tokens, 0 for padding. Self-attention is causal.
        """

        def __init__(self, d_model=32, num_heads=4):
            super().__init__()
            self.self_attn = Attention(d_model, num_heads)
            self.self_attn_layer_norm = nn.LayerNorm(d_model)
            self.encoder_attn = Attention(d_model, num_heads)
            self.encoder_attn_layer_norm = nn.LayerNorm(d_model)
            self.fc1 = nn.Linear(d_model, 64)
            self.fc2 = nn.Linear(64, d_model)
            self.final_layer_norm = nn.LayerNorm(d_model)

        def forward(self, hidden_states, encoder_hidden_states, attention_mask, encoder_attention_mask):
            T = hidden_states.shape[1]
            keep = attention_mask[:, None, None, :].bool()
            causal = torch.ones(T, T, dtype=torch.bool, device=hidden_states.device).tril()
            h = hidden_states
            h = self.self_attn_layer_norm(h + self.self_attn(h, h, keep & causal))
            memory_keep = keep if rev == 1 else encoder_attention_mask[:, None, None, :].bool()
            h = self.encoder_attn_layer_norm(h + self.encoder_attn(h, encoder_hidden_states, memory_keep))
            return self.final_layer_norm(h + self.fc2(self.fc1(h).relu()))

    torch.manual_seed(0)
    return DecoderLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    tgt = (torch.arange(8)[None] < torch.tensor([8, 5])[:, None]).long()
    src = (torch.arange(8)[None] < torch.tensor([6, 8])[:, None]).long()
    return (torch.randn(2, 8, 32), torch.randn(2, 8, 32), tgt, src), {}
