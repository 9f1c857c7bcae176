from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class LearnedPositionalEmbedding(nn.Embedding):
    """Learned positions that skip padding. The first two rows of the table are reserved."""

    def __init__(self, num_embeddings: int, embedding_dim: int):
        self.offset = 2
        super().__init__(num_embeddings + self.offset, embedding_dim)

    def forward(self, attention_mask: torch.Tensor):
        attention_mask = attention_mask.long()
        positions = attention_mask.cumsum(dim=1) * attention_mask - 1
        return super().forward(positions + self.offset)


class OPTAttentionDecoder(nn.Module):
    """One decoder layer with embeddings.

    Args:
        input_ids: ``[B, T]``, only the new tokens when ``past`` is given.
        attention_mask: ``[B, past + T]``, 1 for real tokens, 0 for (left) padding.
        past: keys and values returned by the previous call.
    Returns:
        logits ``[B, T, vocab]`` and the keys and values for the next call.
    """

    def __init__(self, vocab_size: int = 100, dim: int = 64, num_heads: int = 4, max_positions: int = 128):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.embed_tokens = nn.Embedding(vocab_size, dim)
        self.embed_positions = LearnedPositionalEmbedding(max_positions, dim)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def _shape(self, x):
        return x.view(x.size(0), -1, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        b, t = input_ids.shape
        past_len = past[0].size(2) if past is not None else 0
        if attention_mask is None:
            attention_mask = torch.ones(b, past_len + t, dtype=torch.long, device=input_ids.device)

        x = self.embed_tokens(input_ids) + self.embed_positions(attention_mask[:, past_len:])

        h = self.self_attn_layer_norm(x)
        q, k, v = self._shape(self.q_proj(h)), self._shape(self.k_proj(h)), self._shape(self.v_proj(h))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)

        causal = torch.ones(t, past_len + t, dtype=torch.bool, device=x.device).tril(past_len)
        allowed = causal[None, None] & attention_mask.bool()[:, None, None, :]
        bias = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out_proj(out.transpose(1, 2).reshape(b, t, -1))
        x = x + self.fc2(F.relu(self.fc1(self.final_layer_norm(x))))
        return x @ self.embed_tokens.weight.t(), (k, v)
