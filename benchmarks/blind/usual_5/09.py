import torch
import torch.nn as nn
import torch.nn.functional as F


def sigmoid_attention(x, in_weight, out_weight, num_heads, key_mask=None):
    """Self-attention with an elementwise sigmoid in place of the softmax.

    Follows "Theory, Analysis, and Best Practices for Sigmoid Self-Attention": every
    logit gets the offset -log(n), n being the number of keys that may be attended to,
    so that the weights of a row sum to about one at the start of training. Rows are
    deliberately not normalised.

    in_weight: (3 * dim, dim), out_weight: (dim, dim), key_mask: (b, n), True = real token.
    """
    b, n, dim = x.shape
    d = dim // num_heads
    qkv = F.linear(x, in_weight).view(b, n, 3, num_heads, d)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)

    logits = (q @ k.mT) * d ** -0.5
    if key_mask is None:
        logits = logits - torch.log(torch.tensor(float(n), device=x.device, dtype=x.dtype))
    else:
        count = key_mask.sum(dim=-1).clamp(min=1).to(x.dtype)
        logits = logits - count.log().view(b, 1, 1, 1)
        logits = logits.masked_fill(~key_mask.view(b, 1, 1, n), float("-inf"))

    out = torch.sigmoid(logits) @ v
    return F.linear(out.transpose(1, 2).reshape(b, n, dim), out_weight)


class SigmoidAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.in_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.out_weight = nn.Parameter(torch.empty(dim, dim))
        nn.init.trunc_normal_(self.in_weight, std=0.02)
        nn.init.trunc_normal_(self.out_weight, std=0.02)

    def forward(self, x, key_mask=None):
        return sigmoid_attention(x, self.in_weight, self.out_weight, self.num_heads, key_mask)
