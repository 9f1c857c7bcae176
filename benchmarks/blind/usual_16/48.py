import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.n_heads, c // self.n_heads).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / (c // self.n_heads) ** 0.5
        att = F.softmax(att + mask, dim=-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.ff(self.ln2(x))


class PromptLM(nn.Module):
    """Decoder-only language model for batched generation.

    Prompts of different length are padded on the left with ``pad_id``, so that the last column is
    the next token to predict in every row.
    """

    def __init__(self, vocab_size=200, dim=64, n_heads=4, n_layers=2, max_len=128, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok_emb = nn.Embedding(vocab_size, dim)
        self.pos_emb = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList([Layer(dim, n_heads) for _ in range(n_layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def make_mask(self, attention_mask, dtype):
        t = attention_mask.size(1)
        causal = torch.ones(t, t, dtype=torch.bool, device=attention_mask.device).tril()
        allowed = causal[None] & attention_mask[:, None, :]
        mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return mask.masked_fill(~allowed, float("-inf")).unsqueeze(1)

    def forward(self, ids):
        attention_mask = ids != self.pad_id
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        x = self.tok_emb(ids) + self.pos_emb(positions)
        mask = self.make_mask(attention_mask, x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.ln_f(x))
