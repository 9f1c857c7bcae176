import torch
import torch.nn as nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020), causal variant.

    Logits are mixed across heads before the softmax and weights after it. The mask is applied
    between the first mixing and the softmax, so masked entries stay exactly zero in the second.
    """

    def __init__(self, dim=64, num_heads=8, causal=True, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.mix_logits = nn.Linear(num_heads, num_heads, bias=False)
        self.mix_weights = nn.Linear(num_heads, num_heads, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        for mix in (self.mix_logits, self.mix_weights):
            nn.init.eye_(mix.weight)
            with torch.no_grad():
                mix.weight.add_(torch.randn_like(mix.weight) * 0.02)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)

        logits = (q * self.scale) @ k.transpose(-2, -1)
        logits = self.mix_logits(logits.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.causal:
            future = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))

        attn = logits.softmax(dim=-1)
        attn = self.mix_weights(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = self.attn_drop(attn)

        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))
