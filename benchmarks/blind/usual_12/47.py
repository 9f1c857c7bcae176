import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(dim)
        self.attn_qkv = nn.Linear(dim, 3 * dim)
        self.attn_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, bias):
        B, T, C = x.shape
        qkv = self.attn_qkv(self.ln_1(x)).view(B, T, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias
        y = F.softmax(att, dim=-1) @ v
        x = x + self.attn_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class BatchedDecoderLM(nn.Module):
    """Small causal language model for batched generation.

    Prompts of different lengths are padded on the left, so that the last column holds the last
    token of every prompt. ``attention_mask`` is (batch, seq), 1 for tokens and 0 for padding;
    position ids are counted from the first real token.
    """

    def __init__(self, vocab_size=100, dim=48, num_layers=2, num_heads=4, max_positions=64):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, dim)
        self.wpe = nn.Embedding(max_positions, dim)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def make_bias(self, attention_mask, dtype):
        n = attention_mask.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=attention_mask.device).tril()
        visible = causal[None, None] & attention_mask[:, None, None, :].bool()
        bias = torch.zeros(visible.shape, dtype=dtype, device=attention_mask.device)
        return bias.masked_fill(~visible, float("-inf"))

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        position_ids = (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)
        x = self.wte(input_ids) + self.wpe(position_ids)
        bias = self.make_bias(attention_mask, x.dtype)
        for block in self.blocks:
            x = block(x, bias)
        return self.lm_head(self.ln_f(x))
