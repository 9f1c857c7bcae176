import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        n, l, w = x.shape
        q, k, v = self.in_proj(self.ln_1(x)).view(n, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(y.transpose(1, 2).reshape(n, l, w))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class CaptionEncoder(nn.Module):
    """Causal text tower for contrastive image-text training.

    Captions are tokenised as ``<sot> ... <eot>`` and filled up with ``pad_id`` on the
    right to ``context_length``. The embedding of a caption is the feature of its
    ``<eot>`` token, projected and normalised.
    """

    def __init__(
        self,
        vocab_size=1000,
        dim=64,
        num_heads=4,
        num_layers=2,
        context_length=32,
        embed_dim=48,
        eot_id=999,
        pad_id=0,
    ):
        super().__init__()
        self.context_length = context_length
        self.eot_id = eot_id
        self.pad_id = pad_id
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(context_length, dim))
        self.resblocks = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.ln_final = nn.LayerNorm(dim)
        self.text_projection = nn.Parameter(dim ** -0.5 * torch.randn(dim, embed_dim))

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding[: text.size(1)]
        for block in self.resblocks:
            x = block(x)
        x = self.ln_final(x)
        pooled = x[:, -1]
        return F.normalize(pooled @ self.text_projection, dim=-1)
