import math

import torch
from torch import nn


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).type_as(hidden_states)


class T5Attention(nn.Module):
    def __init__(self, d_model, d_kv, num_heads, has_relative_attention_bias, num_buckets=32, max_distance=128):
        super().__init__()
        self.n_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        # the factor 1/sqrt(d_kv) is folded into the initialisation of q, there is none in the forward pass
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner_dim ** -0.5)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def compute_bias(self, length, device):
        pos = torch.arange(length, device=device)
        relative_position = pos[None, :] - pos[:, None]  # memory - context
        num_buckets = self.num_buckets // 2  # one half for each direction
        buckets = (relative_position > 0).long() * num_buckets
        distance = relative_position.abs()
        max_exact = num_buckets // 2
        large = max_exact + (
            torch.log(distance.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        buckets = buckets + torch.where(distance < max_exact, distance, large.clamp(max=num_buckets - 1))
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask, position_bias=None):
        b, n, _ = hidden_states.shape
        q, k, v = (
            f(hidden_states).view(b, n, self.n_heads, self.d_kv).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        if position_bias is None:
            position_bias = self.compute_bias(n, hidden_states.device) + mask
        scores = torch.matmul(q, k.transpose(-1, -2)) + position_bias
        weights = scores.float().softmax(dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out), position_bias


class T5EncoderStack(nn.Module):
    """T5 encoder. The first layer owns the relative position bias and shares it, mask included, with the rest."""

    def __init__(self, vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_heads=4, num_layers=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, d_model)
        self.attn = nn.ModuleList(T5Attention(d_model, d_kv, num_heads, i == 0) for i in range(num_layers))
        self.attn_norm = nn.ModuleList(T5LayerNorm(d_model) for _ in range(num_layers))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(d_model, d_ff, bias=False), nn.ReLU(), nn.Linear(d_ff, d_model, bias=False))
            for _ in range(num_layers)
        )
        self.ff_norm = nn.ModuleList(T5LayerNorm(d_model) for _ in range(num_layers))
        self.final_layer_norm = T5LayerNorm(d_model)

    def forward(self, input_ids, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding."""
        x = self.embed_tokens(input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        position_bias = None
        for attn, attn_norm, ff, ff_norm in zip(self.attn, self.attn_norm, self.ff, self.ff_norm):
            y, position_bias = attn(attn_norm(x), mask, position_bias)
            x = x + y
            x = x + ff(ff_norm(x))
        return self.final_layer_norm(x)
