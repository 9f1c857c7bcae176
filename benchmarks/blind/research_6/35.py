import torch
import torch.nn as nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020) for decoders.

    The logits are mixed over the heads before the softmax and the weights once more
    after it. After the second mix a row no longer adds up to one; this is part of the
    method.

    ignore: optional bool [B, T]. NOTE the polarity: True marks a token that has to be
    IGNORED as a key (same as nn.MultiheadAttention's key_padding_mask).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.mix_logits = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.mix_weights = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, ignore=None):
        B, T, C = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))

        logits = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        logits = torch.einsum("bhij,hg->bgij", logits, self.mix_logits)

        # masks come after the first mix: an -inf must not be spread over the heads
        hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)[None, None]
        if ignore is not None:
            hidden = hidden | ignore[:, None, None, :]
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1)

        # a row without a single visible key gives zeros
        weights = weights.masked_fill(hidden, 0.0)
        weights = torch.einsum("bhij,hg->bgij", weights, self.mix_weights)
        weights = self.dropout(weights)

        y = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.to_out(y.transpose(1, 2).reshape(B, T, C))
