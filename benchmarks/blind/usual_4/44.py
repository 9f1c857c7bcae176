import torch
import torch.nn as nn
import torch.nn.functional as F


class FeedForwardModule(nn.Module):
    def __init__(self, dim, expansion=4, dropout=0.1):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim * expansion),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(dim * expansion, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


class ConvModule(nn.Module):
    def __init__(self, dim, kernel_size=15, dropout=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise_in = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.inner_norm = nn.GroupNorm(1, dim)
        self.pointwise_out = nn.Conv1d(dim, dim, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.norm(x).transpose(1, 2)
        y = F.glu(self.pointwise_in(y), dim=1)
        y = F.silu(self.inner_norm(self.depthwise(y)))
        return self.dropout(self.pointwise_out(y).transpose(1, 2))


class SelfAttentionModule(nn.Module):
    """Pre-norm multi-head self-attention with dropout and skip connection."""

    def __init__(self, dim, num_heads=4, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, dim * 3)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        residual = x
        b, t, d = x.shape
        qkv = self.to_qkv(self.norm(x)).view(b, t, 3, self.num_heads, d // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        out = self.to_out(out.transpose(1, 2).reshape(b, t, d))
        return residual + self.dropout(out)


class ConformerBlock(nn.Module):
    """Conformer block: half-step FFN, self-attention, convolution, half-step FFN, LayerNorm."""

    def __init__(self, dim=64, num_heads=4, ff_expansion=4, kernel_size=15, dropout=0.1):
        super().__init__()
        self.ffn1 = FeedForwardModule(dim, ff_expansion, dropout)
        self.attn = SelfAttentionModule(dim, num_heads, dropout)
        self.conv = ConvModule(dim, kernel_size, dropout)
        self.ffn2 = FeedForwardModule(dim, ff_expansion, dropout)
        self.final_norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + 0.5 * self.ffn1(x)
        x = x + self.attn(x)
        x = x + self.conv(x)
        x = x + 0.5 * self.ffn2(x)
        return self.final_norm(x)
