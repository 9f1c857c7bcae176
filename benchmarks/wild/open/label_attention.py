"""A padding mask with True at padding is handed to scaled_dot_product_attention as it is, where True means take part.

InseeFrLab/torchTextClassifiers #92 (2026)
https://github.com/InseeFrLab/torchTextClassifiers/pull/92
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class LabelAttention(nn.Module):
        """One learned query per label looks at the tokens of a text.

        forward(token_embeddings, attention_mask): (B, T, C); attention_mask (B, T), 1 for tokens and 0 for padding.
        Returns (B, num_classes, C).
        """

        def __init__(self, embedding_dim=32, num_classes=5, n_head=4):
            super().__init__()
            self.n_head = n_head
            self.label_embeds = nn.Embedding(num_classes, embedding_dim)
            self.norm_1 = nn.LayerNorm(embedding_dim)
            self.norm_2 = nn.LayerNorm(embedding_dim)
            self.c_q = nn.Linear(embedding_dim, embedding_dim, bias=False)
            self.c_k = nn.Linear(embedding_dim, embedding_dim, bias=False)
            self.c_v = nn.Linear(embedding_dim, embedding_dim, bias=False)
            self.c_proj = nn.Linear(embedding_dim, embedding_dim, bias=False)

        def forward(self, token_embeddings, attention_mask=None):
            B, T, C = token_embeddings.shape
            x = self.norm_1(token_embeddings)
            labels = self.norm_2(self.label_embeds.weight).expand(B, -1, -1)
            q = self.c_q(labels).view(B, -1, self.n_head, C // self.n_head).transpose(1, 2)
            k = self.c_k(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            v = self.c_v(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            attn_mask = None
            if attention_mask is not None:
                padding = (attention_mask == 0)[:, None, None, :]
                attn_mask = padding if rev == 1 else ~padding
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
            return self.c_proj(y.transpose(1, 2).reshape(B, -1, C))

    torch.manual_seed(0)
    return LabelAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(8)[None] < torch.tensor([7, 5])[:, None]).long()
    return (torch.randn(2, 8, 32),), {"attention_mask": mask}
