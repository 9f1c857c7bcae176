from collections import OrderedDict

import torch
import torch.nn as nn


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head, attn_mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            OrderedDict(
                [
                    ("c_fc", nn.Linear(d_model, d_model * 4)),
                    ("gelu", QuickGELU()),
                    ("c_proj", nn.Linear(d_model * 4, d_model)),
                ]
            )
        )
        self.ln_2 = nn.LayerNorm(d_model)
        self.attn_mask = attn_mask

    def forward(self, x):
        L = x.size(0)
        mask = self.attn_mask[:L, :L].to(dtype=x.dtype, device=x.device)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class TextTransformer(nn.Module):
    """CLIP text encoder.

    ``<eot>`` has the highest id of the vocabulary and the filling behind it is 0, so that
    the argmax of the ids is the position of ``<eot>``. No padding mask is needed: with
    the causal mask nothing up to ``<eot>`` can look at the filling.
    """

    def __init__(self, vocab_size=1000, dim=64, num_heads=4, layers=2, context_length=32, embed_dim=48):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, dim))
        mask = torch.empty(context_length, context_length).fill_(float("-inf")).triu_(1)
        self.resblocks = nn.Sequential(*[ResidualAttentionBlock(dim, num_heads, mask) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(dim)
        self.text_projection = nn.Parameter(torch.empty(dim, embed_dim))
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=dim ** -0.5)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding[: text.size(1)]
        x = x.permute(1, 0, 2)  # NLD -> LND
        x = self.resblocks(x)
        x = x.permute(1, 0, 2)  # LND -> NLD
        x = self.ln_final(x)
        return x[torch.arange(x.shape[0], device=x.device), text.argmax(dim=-1)] @ self.text_projection
