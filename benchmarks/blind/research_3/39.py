from collections import OrderedDict

import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int, attn_mask: torch.Tensor):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(OrderedDict([
            ("c_fc", nn.Linear(d_model, d_model * 4)),
            ("gelu", QuickGELU()),
            ("c_proj", nn.Linear(d_model * 4, d_model)),
        ]))
        self.ln_2 = nn.LayerNorm(d_model)
        self.register_buffer("attn_mask", attn_mask, persistent=False)

    def attention(self, x: torch.Tensor):
        n = x.size(0)
        return self.attn(x, x, x, need_weights=False, attn_mask=self.attn_mask[:n, :n])[0]

    def forward(self, x: torch.Tensor):
        x = x + self.attention(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class TextTower(nn.Module):
    """CLIP text encoder.

    text: [batch, context_length] token ids: <sot> words <eot>, then zeros up to the
    context length. <eot> has the highest id of the vocabulary. The caption's embedding
    is the projected feature at <eot>.
    """

    def __init__(self, embed_dim: int = 32, context_length: int = 24, vocab_size: int = 120,
                 width: int = 64, heads: int = 4, layers: int = 2):
        super().__init__()
        self.context_length = context_length
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.resblocks = nn.ModuleList(
            [ResidualAttentionBlock(width, heads, self.build_attention_mask()) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width ** -0.5)

    def build_attention_mask(self):
        mask = torch.empty(self.context_length, self.context_length)
        mask.fill_(float("-inf"))
        mask.triu_(1)
        return mask

    def forward(self, text: torch.Tensor):
        x = self.token_embedding(text)
        x = x + self.positional_embedding[:text.size(1)]
        x = x.permute(1, 0, 2)  # NLD -> LND
        for block in self.resblocks:
            x = block(x)
        x = x.permute(1, 0, 2)  # LND -> NLD
        x = self.ln_final(x)
        return x[:, -1] @ self.text_projection
