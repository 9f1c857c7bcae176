import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiQueryAttention(nn.Module):
    """Multi-query attention: all query heads share a single key/value head."""

    def __init__(self, d_model: int = 256, n_heads: int = 8, attn_pdrop: float = 0.0):
        super().__init__()
        self.d_model = d_model
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.softmax_scale = self.head_dim ** -0.5
        self.attn_dropout_p = attn_pdrop
        self.Wqkv = nn.Linear(d_model, d_model + 2 * self.head_dim)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, past_key_value=None, attention_mask=None):
        b, s, _ = x.shape
        qkv = self.Wqkv(x)
        query, key, value = qkv.split([self.d_model, self.head_dim, self.head_dim], dim=2)

        q = query.view(b, s, self.n_heads, self.head_dim).transpose(1, 2)
        k = key.unsqueeze(1)
        v = value.unsqueeze(1)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        past_key_value = (k, v)
        s_k = k.size(2)

        attn_weight = q.matmul(k.transpose(-1, -2)) * self.softmax_scale
        min_val = torch.finfo(attn_weight.dtype).min
        if attention_mask is not None:
            attn_weight = attn_weight.masked_fill(~attention_mask.bool()[:, None, None, :], min_val)
        causal = torch.ones(s, s_k, dtype=torch.bool, device=x.device).tril(s_k - s)
        attn_weight = attn_weight.masked_fill(~causal, min_val)

        attn_weight = torch.softmax(attn_weight, dim=-1)
        attn_weight = F.dropout(attn_weight, p=self.attn_dropout_p, training=self.training)
        context = attn_weight.matmul(v)
        context = context.reshape(b, s, self.d_model)
        return self.out_proj(context), past_key_value
