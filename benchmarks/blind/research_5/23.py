from collections import OrderedDict

import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(OrderedDict([
            ("c_fc", nn.Linear(d_model, d_model * 4)),
            ("gelu", QuickGELU()),
            ("c_proj", nn.Linear(d_model * 4, d_model)),
        ]))
        self.ln_2 = nn.LayerNorm(d_model)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class TextTower(nn.Module):
    """CLIP text encoder.

    Captions are ``<start> words <end> <end> ...``: the pad token is the end token. The feature is
    taken at the first end token, and since the attention is causal nothing behind it can reach it,
    so that no padding mask is needed.
    """

    def __init__(self, vocab_size: int = 200, context_length: int = 16, width: int = 64, heads: int = 4,
                 layers: int = 2, embed_dim: int = 32, eos_token_id: int = 2):
        super().__init__()
        self.eos_token_id = eos_token_id
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.randn(context_length, width) * 0.01)
        self.blocks = nn.ModuleList([ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embed_dim) * width ** -0.5)
        mask = torch.full((context_length, context_length), float("-inf")).triu(1)
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        n, length = text.shape
        x = self.token_embedding(text) + self.positional_embedding[:length]
        x = x.permute(1, 0, 2)  # NLD -> LND
        for block in self.blocks:
            x = block(x, self.attn_mask[:length, :length])
        x = x.permute(1, 0, 2)  # LND -> NLD
        x = self.ln_final(x)
        end = (text == self.eos_token_id).int().argmax(dim=-1)
        return x[torch.arange(n, device=text.device), end] @ self.text_projection
