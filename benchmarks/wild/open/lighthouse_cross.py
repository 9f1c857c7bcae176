"""The per-sample 3-D mask is tiled with repeat instead of repeat_interleave, so heads use other samples' padding masks.

line/lighthouse #77 (2026)
https://github.com/line/lighthouse/pull/77
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class T2V_TransformerEncoderLayer(nn.Module):
        """Video clips attend to the words of the query text.

        forward(src_vid, src_txt, src_vid_mask, src_txt_mask): src_vid (L_v, B, C), src_txt (L_t, B, C);
        masks (B, L) bool, True at padding positions.
        """

        def __init__(self, d_model=32, nhead=4, dim_feedforward=64, dropout=0.1):
            super().__init__()
            self.nhead = nhead
            self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
            self.linear1 = nn.Linear(d_model, dim_feedforward)
            self.dropout = nn.Dropout(dropout)
            self.linear2 = nn.Linear(dim_feedforward, d_model)
            self.norm1 = nn.LayerNorm(d_model)
            self.norm2 = nn.LayerNorm(d_model)

        def forward(self, src_vid, src_txt, src_vid_mask=None, src_txt_mask=None):
            attn_mask = None
            if src_txt_mask is not None:
                attn_mask = src_txt_mask.unsqueeze(1).expand(-1, src_vid.shape[0], -1)
                if rev == 1:
                    attn_mask = attn_mask.repeat(self.nhead, 1, 1)
                else:
                    attn_mask = attn_mask.repeat_interleave(self.nhead, dim=0)
            src2 = self.self_attn(src_vid, src_txt, value=src_txt, attn_mask=attn_mask, need_weights=False)[0]
            src = self.norm1(src_vid + self.dropout(src2))
            src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
            return self.norm2(src + self.dropout(src2))

    torch.manual_seed(0)
    return T2V_TransformerEncoderLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    vid, txt = torch.randn(7, 3, 32), torch.randn(5, 3, 32)
    vid_mask = torch.arange(7)[None] >= torch.tensor([7, 5, 6])[:, None]
    txt_mask = torch.arange(5)[None] >= torch.tensor([2, 5, 4])[:, None]
    return (vid, txt), {"src_vid_mask": vid_mask, "src_txt_mask": txt_mask}
