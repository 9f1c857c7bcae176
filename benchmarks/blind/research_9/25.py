from collections import OrderedDict

import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head, batch_first=True)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(OrderedDict([
            ("c_fc", nn.Linear(d_model, d_model * 4)),
            ("gelu", QuickGELU()),
            ("c_proj", nn.Linear(d_model * 4, d_model)),
        ]))
        self.ln_2 = nn.LayerNorm(d_model)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class CLIPTextTower(nn.Module):
    """Text encoder of CLIP.

    ``text`` holds token ids [B, L] as ``<sot> ... <eot>`` followed by ``pad_id``. The feature of a text
    is the output at its ``<eot>`` token, projected to the joint space.
    """

    def __init__(
        self,
        vocab_size: int = 512,
        context_length: int = 32,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        embed_dim: int = 32,
        pad_id: int = 0,
    ):
        super().__init__()
        self.pad_id = pad_id
        self.context_length = context_length
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.blocks = nn.ModuleList([ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        mask = torch.full((context_length, context_length), float("-inf")).triu(1)
        self.register_buffer("attn_mask", mask, persistent=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width ** -0.5)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        L = text.shape[1]
        x = self.token_embedding(text) + self.positional_embedding[:L]
        for block in self.blocks:
            x = block(x, self.attn_mask[:L, :L])
        x = self.ln_final(x)

        lengths = text.ne(self.pad_id).sum(dim=-1)
        index = lengths.clamp(max=L - 1)
        x = x[torch.arange(x.shape[0], device=x.device), index]
        return x @ self.text_projection
