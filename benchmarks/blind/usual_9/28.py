import torch
import torch.nn as nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, emb_dim: int = 128, n_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert emb_dim % n_heads == 0
        self.emb_dim = emb_dim
        self.n_heads = n_heads
        self.head_dim = emb_dim // n_heads

        self.to_q = nn.Linear(emb_dim, emb_dim)
        self.to_k = nn.Linear(emb_dim, emb_dim)
        self.to_v = nn.Linear(emb_dim, emb_dim)
        self.fc = nn.Linear(emb_dim, emb_dim)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, pad_mask: torch.Tensor = None):
        """
        x: [B, L, E]
        pad_mask: [B, L], True at padding
        """
        B, L, E = x.shape

        # [B, L, E] -> [B, L, H, D] -> [B, H, L, D]
        q = self.to_q(x).view(B, L, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        k = self.to_k(x).view(B, L, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        v = self.to_v(x).view(B, L, self.n_heads, self.head_dim).permute(0, 2, 1, 3)

        # [B, H, L, L]
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.head_dim ** 0.5
        if pad_mask is not None:
            energy = energy.masked_fill(pad_mask[:, None, None, :], -1e10)
        attention = self.attn_dropout(torch.softmax(energy, dim=-1))

        # [B, H, L, D] -> [B, L, E]
        out = torch.matmul(attention, v)
        out = out.contiguous().view(B, -1, self.emb_dim)

        return self.fc(out)
