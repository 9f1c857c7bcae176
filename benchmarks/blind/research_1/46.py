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
        x = x + self.mlp(self.ln_2(x))
        return x


class CLIPTextTower(nn.Module):
    """CLIP text encoder with room for textual-inversion tokens.

    The BPE vocabulary has 49408 entries, the last two being <|startoftext|> (49406) and
    <|endoftext|> (49407); placeholder tokens for learned concepts follow from 49408 on.
    Sequences end with <|endoftext|> and are padded with 0 up to the context length. The text
    embedding is the projected feature of the <|endoftext|> token.
    """

    def __init__(self, context_length: int = 77, width: int = 64, heads: int = 4, layers: int = 2,
                 embed_dim: int = 48, bpe_size: int = 49408, num_placeholder_tokens: int = 8):
        super().__init__()
        self.context_length = context_length
        self.token_embedding = nn.Embedding(bpe_size + num_placeholder_tokens, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.resblocks = nn.ModuleList([ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))

        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width ** -0.5)
        self.register_buffer("attn_mask", self.build_attention_mask(), persistent=False)

    def build_attention_mask(self):
        # causal, additive
        mask = torch.empty(self.context_length, self.context_length)
        mask.fill_(float("-inf"))
        mask.triu_(1)
        return mask

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """text: (batch, length) token ids -> (batch, embed_dim)"""
        n = text.shape[1]
        x = self.token_embedding(text) + self.positional_embedding[:n]
        for block in self.resblocks:
            x = block(x, self.attn_mask[:n, :n])
        x = self.ln_final(x)

        # take features from the eot embedding (eot_token is the highest number in each sequence)
        x = x[torch.arange(x.shape[0], device=x.device), text.argmax(dim=-1)] @ self.text_projection
        return x
