"""masked_fill is called out of place and its result thrown away, so the padding mask has no effect.

opendilab/DI-engine #333 (2022)
https://github.com/opendilab/DI-engine/issues/333
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class _AttentionBase(nn.Module):
    def __init__(self, input_dim, head_dim, output_dim, head_num, dropout):
        super().__init__()
        self.head_num = head_num
        self.head_dim = head_dim
        self.dropout = dropout
        self.attention_pre = nn.Linear(input_dim, head_dim * head_num * 3)  # query, key, value
        self.project = nn.Linear(head_dim * head_num, output_dim)

    def split(self, x, T=False):
        """Split input to get multi-head queries, keys, values: (B, N, head_num * head_dim) -> (B, head_num, N, head_dim)."""
        B, N = x.shape[:2]
        x = x.view(B, N, self.head_num, self.head_dim)
        x = x.permute(0, 2, 1, 3).contiguous()
        if T:
            x = x.permute(0, 1, 3, 2).contiguous()
        return x


class _Transformer(nn.Module):
    """For each entry embedding, compute individual attention across all entries, add them up to get output attention."""

    def __init__(self, attention, input_dim, hidden_dim):
        super().__init__()
        self.embedding = nn.Linear(input_dim, hidden_dim)
        self.attention = attention
        self.layernorm1 = nn.LayerNorm(hidden_dim)
        self.mlp = nn.Sequential(nn.Linear(hidden_dim, 2 * hidden_dim), nn.ReLU(), nn.Linear(2 * hidden_dim, hidden_dim))
        self.layernorm2 = nn.LayerNorm(hidden_dim)

    def forward(self, x, mask=None):
        """
        Arguments:
            - x (:obj:`torch.Tensor`): Input tensor with shape (B, N, C)
            - mask (:obj:`torch.BoolTensor`): Bool mask with shape (B, N), True for an existing entity, False for padding
        """
        if mask is not None:
            mask = mask.unsqueeze(dim=1).repeat(1, mask.shape[1], 1).unsqueeze(dim=1)
        x = F.relu(self.embedding(x))
        x = self.layernorm1(x + self.attention(x, mask))
        return self.layernorm2(x + self.mlp(x))


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, mask=None):
            """
            Arguments:
                - x (:obj:`torch.Tensor`): (B, N, C)
                - mask (:obj:`Optional[torch.Tensor]`): Boolean mask, True where attention is allowed
            """
            assert len(x.shape) == 3
            B, N = x.shape[:2]
            x = self.attention_pre(x)
            query, key, value = torch.chunk(x, 3, dim=2)
            query, key, value = self.split(query), self.split(key, T=True), self.split(value)

            score = torch.matmul(query, key)  # B, head_num, N, N
            score /= math.sqrt(self.head_dim)
            if mask is not None:
                # inplace modification for reasonable softmax
                score.masked_fill(~mask, value=torch.finfo(score.dtype).min)

            score = F.softmax(score, dim=-1)
            score = F.dropout(score, self.dropout, self.training)
            attention = torch.matmul(score, value)  # B, head_num, N, head_dim
            attention = attention.permute(0, 2, 1, 3).contiguous()
            return self.project(attention.view(B, N, -1))

    torch.manual_seed(0)
    return _Transformer(Attention(32, 8, 32, 4, 0.1), 16, 32)


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, mask=None):
            """
            Arguments:
                - x (:obj:`torch.Tensor`): (B, N, C)
                - mask (:obj:`Optional[torch.Tensor]`): Boolean mask, True where attention is allowed
            """
            assert len(x.shape) == 3
            B, N = x.shape[:2]
            x = self.attention_pre(x)
            query, key, value = torch.chunk(x, 3, dim=2)
            query, key, value = self.split(query), self.split(key, T=True), self.split(value)

            score = torch.matmul(query, key)  # B, head_num, N, N
            score /= math.sqrt(self.head_dim)
            if mask is not None:
                # inplace modification for reasonable softmax
                score.masked_fill_(~mask, value=torch.finfo(score.dtype).min)

            score = F.softmax(score, dim=-1)
            score = F.dropout(score, self.dropout, self.training)
            attention = torch.matmul(score, value)  # B, head_num, N, head_dim
            attention = attention.permute(0, 2, 1, 3).contiguous()
            return self.project(attention.view(B, N, -1))

    torch.manual_seed(0)
    return _Transformer(Attention(32, 8, 32, 4, 0.1), 16, 32)
