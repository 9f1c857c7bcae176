import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def attention(self, x, attn_mask):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.proj(out.transpose(1, 2).reshape(B, T, C))

    def forward(self, x, attn_mask):
        x = x + self.attention(self.ln_1(x), attn_mask)
        return x + self.mlp(self.ln_2(x))


class GPTForSequenceClassification(nn.Module):
    """Decoder-only model with a classification head on the last token, as in GPT-2.

    Batches are padded on the right with ``pad_token_id``.
    """

    def __init__(self, vocab_size=1000, num_labels=3, dim=64, num_heads=4, num_layers=2, max_positions=128,
                 pad_token_id=0, dropout=0.0):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.wte = nn.Embedding(vocab_size, dim)
        self.wpe = nn.Embedding(max_positions, dim)
        self.blocks = nn.ModuleList(Block(dim, num_heads, dropout) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(dim)
        self.score = nn.Linear(dim, num_labels, bias=False)

    def forward(self, input_ids, labels=None):
        B, T = input_ids.shape
        device = input_ids.device

        causal = torch.ones(T, T, dtype=torch.bool, device=device).tril()
        not_pad = input_ids.ne(self.pad_token_id)
        attn_mask = causal[None, None] & not_pad[:, None, None, :]
        # keep the diagonal, so that a row is never empty
        attn_mask = attn_mask | torch.eye(T, dtype=torch.bool, device=device)

        x = self.wte(input_ids) + self.wpe(torch.arange(T, device=device))
        for block in self.blocks:
            x = block(x, attn_mask)
        x = self.ln_f(x)

        pooled = x[:, -1]
        logits = self.score(pooled)
        if labels is None:
            return logits
        return F.cross_entropy(logits, labels), logits
