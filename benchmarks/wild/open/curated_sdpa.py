"""Rows whose mask leaves no key (an empty sequence in the batch) become NaN and are passed on.

explosion/curated-transformers #360 (2024); huggingface/transformers #32390 shows the same
https://github.com/explosion/curated-transformers/pull/360
"""
import torch
import torch.nn as nn


def _build(rev):
    class SelfAttention(nn.Module):
        """forward(input, attention_mask=None): input (B, T, C); attention_mask (B, T) bool, True for pieces.

        The output at pieces that may attend to nothing is that of zero attention.
        """

        def __init__(self, hidden_width=32, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.input = nn.Linear(hidden_width, 3 * hidden_width)
            self.output = nn.Linear(hidden_width, hidden_width)

        def forward(self, input, attention_mask=None):
            B, T, C = input.shape
            query, key, value = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.input(input).chunk(3, -1))
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            if attention_mask is not None:
                scores = scores.masked_fill(~attention_mask[:, None, None, :],
                                            float("-inf") if rev == 1 else torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)
            if rev == 2 and attention_mask is not None:
                weights = weights.masked_fill(~attention_mask[:, None, None, :], 0.0)
            return self.output((weights @ value).transpose(1, 2).reshape(B, T, C))

    class EncoderLayer(nn.Module):
        """Pre-norm encoder layer, same arguments."""

        def __init__(self, hidden_width=32):
            super().__init__()
            self.mha = SelfAttention(hidden_width)
            self.attn_norm = nn.LayerNorm(hidden_width)
            self.ffn = nn.Sequential(nn.LayerNorm(hidden_width), nn.Linear(hidden_width, 64), nn.GELU(),
                                     nn.Linear(64, hidden_width))

        def forward(self, input, attention_mask=None):
            x = input + self.mha(self.attn_norm(input), attention_mask)
            return x + self.ffn(x)

    torch.manual_seed(0)
    return EncoderLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = torch.arange(7)[None] < torch.tensor([7, 4, 0])[:, None]
    return (torch.randn(3, 7, 32),), {"attention_mask": mask}
