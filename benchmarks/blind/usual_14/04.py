import torch
import torch.nn as nn
import torch.nn.functional as F


class SentenceEncoderLayer(nn.Module):
    """Pre-LN encoder layer.

    Parameters
    ----------
    src : (batch, seq, d_model)
    src_key_padding_mask : (batch, seq) bool, True at the padded positions (same as nn.TransformerEncoderLayer)
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.nhead = nhead
        self.head_dim = d_model // nhead
        self.dropout = dropout
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, dim_feedforward), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim_feedforward, d_model)
        )

    def _sa(self, x, key_padding_mask):
        b, s, d = x.shape
        q, k, v = self.in_proj(x).view(b, s, 3, self.nhead, self.head_dim).permute(2, 0, 3, 1, 4)
        mask = None
        if key_padding_mask is not None:
            mask = key_padding_mask[:, None, None, :].expand(b, 1, s, s)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.out_proj(out.transpose(1, 2).reshape(b, s, d))

    def forward(self, src, src_key_padding_mask=None):
        src = src + self._sa(self.norm1(src), src_key_padding_mask)
        src = src + self.ff(self.norm2(src))
        return src
