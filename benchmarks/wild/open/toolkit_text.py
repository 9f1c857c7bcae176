"""Instead of masking, the embeddings of padding are set to zero; they are still attended to.

ostris/ai-toolkit #161 (2024)
https://github.com/ostris/ai-toolkit/issues/161
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class CrossAttnBlock(nn.Module):
        """Image tokens attend to text tokens.

        forward(hidden_states, encoder_hidden_states, encoder_attention_mask): (B, N, C), (B, S, C) and (B, S) with 1
        for text and 0 for padding, which takes no part.
        """

        def __init__(self, dim=32, heads=4):
            super().__init__()
            self.heads = heads
            self.norm = nn.LayerNorm(dim)
            self.context_norm = nn.LayerNorm(dim)
            self.to_q = nn.Linear(dim, dim)
            self.to_k = nn.Linear(dim, dim)
            self.to_v = nn.Linear(dim, dim)
            self.to_out = nn.Linear(dim, dim)

        def forward(self, hidden_states, encoder_hidden_states, encoder_attention_mask):
            B, N, C = hidden_states.shape
            ctx, attn_mask = encoder_hidden_states, None
            if rev == 1:
                ctx = ctx * encoder_attention_mask[..., None].to(ctx.dtype)
            else:
                attn_mask = encoder_attention_mask[:, None, None, :].bool()
            ctx = self.context_norm(ctx)
            q = self.to_q(self.norm(hidden_states)).view(B, N, self.heads, -1).transpose(1, 2)
            k = self.to_k(ctx).view(B, ctx.shape[1], self.heads, -1).transpose(1, 2)
            v = self.to_v(ctx).view(B, ctx.shape[1], self.heads, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
            return hidden_states + self.to_out(y.transpose(1, 2).reshape(B, N, C))

    torch.manual_seed(0)
    return CrossAttnBlock()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(10)[None] < torch.tensor([4, 9])[:, None]).long()
    return (torch.randn(2, 6, 32), torch.randn(2, 10, 32), mask), {}
