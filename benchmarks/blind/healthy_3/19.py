import torch
import torch.nn as nn


class GuidedAttention(nn.Module):
    """MCAN unit: self-attention, optional attention to the guide, feed-forward (post-norm)."""

    def __init__(self, dim, heads, dropout, guided):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.norm_self = nn.LayerNorm(dim)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True) if guided else None
        self.norm_cross = nn.LayerNorm(dim) if guided else None
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.norm_ffn = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, x_pad, guide=None, guide_pad=None):
        y = self.self_attn(x, x, x, key_padding_mask=x_pad, need_weights=False)[0]
        x = self.norm_self(x + self.dropout(y))
        if self.cross_attn is not None:
            y = self.cross_attn(x, guide, guide, key_padding_mask=guide_pad, need_weights=False)[0]
            x = self.norm_cross(x + self.dropout(y))
        return self.norm_ffn(x + self.dropout(self.ffn(x)))


class AttFlat(nn.Module):
    """Several learned attention poolings, concatenated and projected."""

    def __init__(self, dim, out_dim, glimpses, dropout):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, glimpses))
        self.merge = nn.Linear(dim * glimpses, out_dim)

    def forward(self, x, pad):
        score = self.score(x).masked_fill(pad.unsqueeze(-1), float("-inf"))
        att = score.softmax(dim=1)                      # over the tokens, for each glimpse
        pooled = torch.einsum("bng,bnd->bgd", att, x)
        return self.merge(pooled.flatten(1))


class MCAN(nn.Module):
    """Deep modular co-attention network for visual question answering.

    Args:
        region_dim: size of the detector features; their normalised boxes (x1, y1, x2, y2) are added.

    Inputs:
        question: (B, T) token ids, 0 for padding, at least one token each.
        regions: (B, R, region_dim); boxes: (B, R, 4); num_regions: (B,) at least 1.
    """

    def __init__(self, vocab_size=2000, num_answers=300, region_dim=512, dim=128, heads=4, layers=2,
                 glimpses=2, dropout=0.1):
        super().__init__()
        self.word = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.region = nn.Linear(region_dim, dim)
        self.box = nn.Linear(5, dim)
        self.region_norm = nn.LayerNorm(dim)
        self.encoder = nn.ModuleList([GuidedAttention(dim, heads, dropout, guided=False) for _ in range(layers)])
        self.decoder = nn.ModuleList([GuidedAttention(dim, heads, dropout, guided=True) for _ in range(layers)])
        self.flat_q = AttFlat(dim, 2 * dim, glimpses, dropout)
        self.flat_v = AttFlat(dim, 2 * dim, glimpses, dropout)
        self.norm = nn.LayerNorm(2 * dim)
        self.classifier = nn.Linear(2 * dim, num_answers)

    def forward(self, question, regions, boxes, num_regions):
        q_pad = question == 0
        slots = torch.arange(regions.size(1), device=regions.device)
        v_pad = slots[None, :] >= num_regions[:, None]

        # padding is at the end, so that it cannot change the states of the words before
        q, _ = self.lstm(self.word(question))
        area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
        geometry = torch.cat([boxes, area.unsqueeze(-1)], dim=-1)
        v = self.region_norm(self.region(regions) + self.box(geometry))

        # encoder-decoder variant: the question is finished before it guides the image
        for layer in self.encoder:
            q = layer(q, q_pad)
        for layer in self.decoder:
            v = layer(v, v_pad, q, q_pad)

        fused = self.norm(self.flat_q(q, q_pad) + self.flat_v(v, v_pad))
        return self.classifier(fused)
