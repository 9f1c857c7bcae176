"""The block receives the mask but does not hand it to its attention, so images packed in one row attend to each other.

mistralai/mistral-inference #218 (2024)
https://github.com/mistralai/mistral-inference/pull/218
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class Attention(nn.Module):
        def __init__(self, dim, n_heads):
            super().__init__()
            self.n_heads = n_heads
            self.wq = nn.Linear(dim, dim, bias=False)
            self.wk = nn.Linear(dim, dim, bias=False)
            self.wv = nn.Linear(dim, dim, bias=False)
            self.wo = nn.Linear(dim, dim, bias=False)

        def forward(self, x, mask=None):
            B, T, C = x.shape
            q, k, v = (w(x).view(B, T, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
            return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(B, T, C))

    class TransformerBlock(nn.Module):
        def __init__(self, dim, n_heads):
            super().__init__()
            self.attention = Attention(dim, n_heads)
            self.attention_norm = nn.RMSNorm(dim)
            self.ffn_norm = nn.RMSNorm(dim)
            self.w1 = nn.Linear(dim, 2 * dim, bias=False)
            self.w3 = nn.Linear(dim, 2 * dim, bias=False)
            self.w2 = nn.Linear(2 * dim, dim, bias=False)

        def forward(self, x, mask=None):
            if rev == 1:
                h = x + self.attention(self.attention_norm(x))
            else:
                h = x + self.attention(self.attention_norm(x), mask=mask)
            r = self.ffn_norm(h)
            return h + self.w2(F.silu(self.w1(r)) * self.w3(r))

    class VisionTransformerBlocks(nn.Module):
        """forward(patch_embeds, image_ids): the patches of several images in one row, (B, T, dim); image_ids (B, T)
        says to which image each belongs. Patches attend to all patches of their own image and to no others."""

        def __init__(self, dim=32, n_heads=4, n_layers=2):
            super().__init__()
            self.layers = nn.ModuleList(TransformerBlock(dim, n_heads) for _ in range(n_layers))

        def forward(self, patch_embeds, image_ids):
            mask = (image_ids[:, None, :, None] == image_ids[:, None, None, :])
            for layer in self.layers:
                patch_embeds = layer(patch_embeds, mask=mask)
            return patch_embeds

    torch.manual_seed(0)
    return VisionTransformerBlocks()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 9, 32), torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 1, 1, 1]])), {}
