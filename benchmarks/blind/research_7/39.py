import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads, attn_mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, width * 4),
            QuickGELU(),
            nn.Linear(width * 4, width),
        )
        self.ln_2 = nn.LayerNorm(width)
        self.register_buffer("attn_mask", attn_mask, persistent=False)

    def forward(self, x):
        n = x.size(0)
        mask = self.attn_mask[:n, :n].to(x.dtype)
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class CLIPTextTower(nn.Module):
    """Text encoder of CLIP.

    The end-of-text token is the last id of the vocabulary (vocab_size - 1) and padding is 0, so
    the argmax of the ids is the position of the end-of-text token. Padding comes after it and
    is hidden by the causal mask.
    """

    def __init__(self, vocab_size=512, context_length=32, width=64, heads=4, layers=2, embed_dim=48):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        mask = torch.full((context_length, context_length), float("-inf")).triu_(1)
        self.blocks = nn.ModuleList(ResidualAttentionBlock(width, heads, mask) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width ** -0.5)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding[: text.size(1)]
        x = x.permute(1, 0, 2)  # NLD -> LND
        for block in self.blocks:
            x = block(x)
        x = self.ln_final(x.permute(1, 0, 2))
        return x[torch.arange(x.size(0), device=x.device), text.argmax(dim=-1)] @ self.text_projection
