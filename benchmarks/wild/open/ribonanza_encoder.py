"""The attention turns the caller's 0/1 padding mask into -1/1 in place, so the next layer no longer blanks padding.

Shujun-He/RibonanzaNet #7 (2025)
https://github.com/Shujun-He/RibonanzaNet/issues/7
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledDotProductAttention(nn.Module):
    ''' Scaled Dot-Product Attention '''

    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, attn_mask=None):
        attn = torch.matmul(q, k.transpose(2, 3)) / self.temperature
        if attn_mask is not None:
            attn = attn.float().masked_fill(attn_mask == -1, torch.finfo(torch.float32).min)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class _MultiHeadAttentionBase(nn.Module):
    def __init__(self, d_model, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=d_k ** 0.5)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, x, dim):
        return x.view(x.size(0), x.size(1), self.n_head, dim).transpose(1, 2)


class ConvTransformerEncoderLayer(nn.Module):
    def __init__(self, self_attn, d_model, dim_feedforward, k=3, dropout=0.1):
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, k, padding=k // 2)
        self.norm3 = nn.LayerNorm(d_model)
        self.self_attn = self_attn
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask=None):
        if src_mask is not None:
            src = src * src_mask.to(src.dtype).unsqueeze(-1)
        src = src + self.conv(src.permute(0, 2, 1)).permute(0, 2, 1)
        src = self.norm3(src)
        src2, attention_weights = self.self_attn(src, src, src, src_mask=src_mask)
        src = self.norm1(src + self.dropout(src2))
        src2 = self.linear2(self.dropout(F.gelu(self.linear1(src))))
        return self.norm2(src + self.dropout(src2))


class RibonanzaEncoder(nn.Module):
    """src: [batch, length, d_model]; src_mask: [batch, length], 1 for nucleotides and 0 for padding."""

    def __init__(self, multi_head_attention, d_model=32, nhead=4, dim_feedforward=64, nlayers=2):
        super().__init__()
        head = d_model // nhead
        self.transformer_encoder = nn.ModuleList([
            ConvTransformerEncoderLayer(multi_head_attention(d_model, nhead, head, head), d_model, dim_feedforward)
            for _ in range(nlayers)])

    def forward(self, src, src_mask=None):
        for layer in self.transformer_encoder:
            src = layer(src, src_mask)
        return src


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        ''' Multi-Head Attention module '''

        def forward(self, q, k, v, src_mask=None):
            sz_b, len_q = q.size(0), q.size(1)
            q, k, v = self._heads(self.w_qs(q), self.d_k), self._heads(self.w_ks(k), self.d_k), self._heads(self.w_vs(v), self.d_v)

            attn_mask = None
            if src_mask is not None:
                src_mask[src_mask == 0] = -1
                src_mask = src_mask.unsqueeze(-1).float()
                attn_mask = torch.matmul(src_mask, src_mask.permute(0, 2, 1))
                attn_mask = attn_mask.unsqueeze(1)  # For head axis broadcasting

            q, attn = self.attention(q, k, v, attn_mask=attn_mask)
            q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
            return self.dropout(self.fc(q)), attn

    torch.manual_seed(0)
    return RibonanzaEncoder(MultiHeadAttention)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        ''' Multi-Head Attention module '''

        def forward(self, q, k, v, src_mask=None):
            sz_b, len_q = q.size(0), q.size(1)
            q, k, v = self._heads(self.w_qs(q), self.d_k), self._heads(self.w_ks(k), self.d_k), self._heads(self.w_vs(v), self.d_v)

            attn_mask = None
            if src_mask is not None:
                src_mask = torch.where(src_mask == 0, -1, 1)
                src_mask = src_mask.unsqueeze(-1).float()
                attn_mask = torch.matmul(src_mask, src_mask.permute(0, 2, 1))
                attn_mask = attn_mask.unsqueeze(1)  # For head axis broadcasting

            q, attn = self.attention(q, k, v, attn_mask=attn_mask)
            q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
            return self.dropout(self.fc(q)), attn

    torch.manual_seed(0)
    return RibonanzaEncoder(MultiHeadAttention)


def example() -> tuple[tuple, dict]:
    src = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    return (src,), {"src_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}
