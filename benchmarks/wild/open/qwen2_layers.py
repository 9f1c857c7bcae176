"""The layer index is compared the wrong way round, so the sliding window lands on the layers that should be global and vice versa.

huggingface/transformers #35896 (2025)
https://github.com/huggingface/transformers/issues/35896
"""
import torch
import torch.nn as nn


def _build(rev):
    class Qwen2Attention(nn.Module):
        def __init__(self, hidden_size, num_heads, num_kv_heads, sliding_window, max_window_layers, layer_idx):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, hidden_size // num_heads
            self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim)
            self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
            self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            windowed = layer_idx >= max_window_layers if rev == 1 else layer_idx < max_window_layers
            self.sliding_window = sliding_window if windowed else None

        def forward(self, x):
            B, T, _ = x.shape
            q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
            k = self.k_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
            v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
            k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
            v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
            d = torch.arange(T, device=x.device)[:, None] - torch.arange(T, device=x.device)[None]
            keep = d >= 0
            if self.sliding_window is not None:
                keep = keep & (d < self.sliding_window)
            attn = (q @ k.transpose(2, 3) * self.head_dim ** -0.5).masked_fill(~keep, float("-inf")).softmax(-1)
            return self.o_proj((attn @ v).transpose(1, 2).reshape(B, T, -1))

    class Qwen2Model(nn.Module):
        """forward(input_ids): causal; sliding_window: keys per query (itself included) in windowed layers.

        max_window_layers: the number of layers that use sliding-window attention; the bottom ones (the first
        max_window_layers) use it while the top ones use full attention.
        """

        def __init__(self, vocab_size=64, hidden_size=32, num_layers=3, sliding_window=3, max_window_layers=2):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
            self.layers = nn.ModuleList(Qwen2Attention(hidden_size, 4, 2, sliding_window, max_window_layers, i)
                                        for i in range(num_layers))
            self.norms = nn.ModuleList(nn.RMSNorm(hidden_size) for _ in range(num_layers))
            self.norm = nn.RMSNorm(hidden_size)

        def forward(self, input_ids):
            h = self.embed_tokens(input_ids)
            for norm, layer in zip(self.norms, self.layers):
                h = h + layer(norm(h))
            return self.norm(h)

    torch.manual_seed(0)
    return Qwen2Model()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randint(0, 64, (2, 12)),), {}
