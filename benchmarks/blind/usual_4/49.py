import torch
import torch.nn as nn


class TalkingHeadsSelfAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020).

    Logits are mixed across heads before the softmax and the weights once more after it, both with
    small learned matrices, so that the rows of the final weights need not sum to one. Masked
    positions are filled after the first mixing and stay at zero through the second. The heads are
    concatenated without an output projection; the block's MLP follows directly.
    """

    def __init__(self, dim=64, num_heads=4, causal=False):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix_logits = nn.Parameter(torch.eye(num_heads) + 0.1 * torch.randn(num_heads, num_heads))
        self.mix_weights = nn.Parameter(torch.eye(num_heads) + 0.1 * torch.randn(num_heads, num_heads))

    def forward(self, x, pad_mask=None):
        """x: (B, N, C); pad_mask: (B, N), True on padding."""
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

        logits = (q * self.scale) @ k.transpose(-2, -1)
        logits = torch.einsum("bhij,hg->bgij", logits, self.mix_logits)

        low = torch.finfo(logits.dtype).min
        if self.causal:
            later = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(later, low)
        if pad_mask is not None:
            logits = logits.masked_fill(pad_mask[:, None, None, :], low)

        weights = logits.softmax(dim=-1)
        weights = torch.einsum("bhij,hg->bgij", weights, self.mix_weights)
        return (weights @ v).transpose(1, 2).reshape(B, N, C)
