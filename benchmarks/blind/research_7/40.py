import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiQueryAttention(nn.Module):
    """Causal multi-query attention (StarCoder style): all query heads read one key/value head.

    layer_past: [B, S, 2 * head_dim] keys and values of the earlier tokens, as returned by the
        previous call with ``use_cache=True``.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, attn_pdrop: float = 0.0, resid_pdrop: float = 0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.attn_pdrop = attn_pdrop
        self.c_attn = nn.Linear(embed_dim, embed_dim + 2 * self.head_dim)
        self.c_proj = nn.Linear(embed_dim, embed_dim)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def forward(self, hidden_states, layer_past=None, use_cache=False):
        B, T, _ = hidden_states.shape
        query, key_value = self.c_attn(hidden_states).split((self.embed_dim, 2 * self.head_dim), dim=2)
        if layer_past is not None:
            key_value = torch.cat((layer_past, key_value), dim=1)
        present = key_value if use_cache else None

        key, value = key_value.unsqueeze(1).chunk(2, dim=-1)
        query = query.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        key = key.expand(-1, self.num_heads, -1, -1)
        value = value.expand(-1, self.num_heads, -1, -1)

        attn_output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attn_pdrop if self.training else 0.0,
            is_causal=True,
        )
        attn_output = attn_output.transpose(1, 2).reshape(B, T, self.embed_dim)
        return self.resid_dropout(self.c_proj(attn_output)), present
