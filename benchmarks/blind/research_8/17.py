import torch
import torch.nn as nn


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width * 4), QuickGELU(), nn.Linear(width * 4, width))
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x, attn_mask):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class TextTower(nn.Module):
    """CLIP text encoder. Sequences are <sot> ... <eot> and then ``pad_id`` up to the context length.

    The feature of a text is the one of its <eot> token.
    """

    def __init__(self, vocab_size=500, context_length=32, width=64, heads=4, layers=2, embed_dim=48, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.randn(context_length, width) * 0.01)
        self.blocks = nn.ModuleList(ResidualAttentionBlock(width, heads) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embed_dim) * width ** -0.5)
        mask = torch.full((context_length, context_length), float("-inf")).triu_(1)
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, text):
        b, length = text.shape
        x = self.token_embedding(text) + self.positional_embedding[:length]
        for block in self.blocks:
            x = block(x, self.attn_mask[:length, :length])
        x = self.ln_final(x)
        eot = (text != self.pad_id).sum(dim=-1).clamp(max=length - 1)
        pooled = x[torch.arange(b, device=text.device), eot]
        feats = pooled @ self.text_projection
        return feats / feats.norm(dim=-1, keepdim=True)
