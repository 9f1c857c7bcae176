"""Stacked Attention Network for visual question answering (Yang et al., 2016)."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence


class AttentionHop(nn.Module):
    def __init__(self, dim, att_dim, dropout):
        super().__init__()
        self.image = nn.Linear(dim, att_dim, bias=False)
        self.question = nn.Linear(dim, att_dim)
        self.score = nn.Linear(att_dim, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, regions, u, region_mask):
        h = torch.tanh(self.image(regions) + self.question(u)[:, None, :])
        score = self.score(self.dropout(h)).squeeze(-1)
        score = score.masked_fill(~region_mask, torch.finfo(score.dtype).min)
        p = score.softmax(dim=-1)
        attended = torch.einsum("br,brd->bd", p, regions)
        return u + attended, p


class StackedAttentionVQA(nn.Module):
    """
    Args:
        regions:       (B, R, region_dim) detector features
        num_regions:   (B,) how many of the R regions are real, at least 1
        question:      (B, L) right-padded word ids
        question_len:  (B,) question lengths, at least 1
    Returns:
        answer logits (B, num_answers) and the attention of each hop (B, hops, R)
    """

    def __init__(self, vocab_size=5000, num_answers=500, region_dim=256, dim=128,
                 att_dim=64, hops=2, dropout=0.2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.region_proj = nn.Sequential(nn.Linear(region_dim, dim), nn.Tanh())
        self.hops = nn.ModuleList([AttentionHop(dim, att_dim, dropout) for _ in range(hops)])
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(dim, num_answers)

    def forward(self, regions, num_regions, question, question_len):
        words = self.dropout(self.embed(question))
        packed = pack_padded_sequence(words, question_len.cpu(), batch_first=True, enforce_sorted=False)
        _, (h_n, _) = self.lstm(packed)
        u = h_n[-1]

        v = self.region_proj(regions)
        region_mask = torch.arange(v.size(1), device=v.device)[None, :] < num_regions[:, None]
        maps = []
        for hop in self.hops:
            u, p = hop(v, u, region_mask)
            maps.append(p)
        return self.classifier(self.dropout(u)), torch.stack(maps, dim=1)
