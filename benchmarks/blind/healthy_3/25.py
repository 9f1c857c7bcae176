import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """Multi-head self-attention of NRMS: projections only, no output layer and no residual."""

    def __init__(self, in_dim, heads, head_dim):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.W_Q = nn.Linear(in_dim, heads * head_dim)
        self.W_K = nn.Linear(in_dim, heads * head_dim)
        self.W_V = nn.Linear(in_dim, heads * head_dim)

    def forward(self, x, mask):
        n, t, _ = x.shape

        def split(y):
            return y.view(n, t, self.heads, self.head_dim).transpose(1, 2)

        q, k, v = split(self.W_Q(x)), split(self.W_K(x)), split(self.W_V(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim ** 0.5
        # finite: users without history and empty titles exist
        scores = scores.masked_fill(~mask[:, None, None, :], -1e4)
        out = torch.matmul(scores.softmax(dim=-1), v)
        return out.transpose(1, 2).reshape(n, t, self.heads * self.head_dim)


class AdditivePooling(nn.Module):
    """Word / news attention with a learned query. Returns zeros where nothing is valid."""

    def __init__(self, dim, query_dim):
        super().__init__()
        self.proj = nn.Linear(dim, query_dim)
        self.query = nn.Linear(query_dim, 1, bias=False)

    def forward(self, x, mask):
        score = self.query(torch.tanh(self.proj(x))).squeeze(-1)
        score = score.masked_fill(~mask, -1e4)
        alpha = score.softmax(dim=-1) * mask.to(score.dtype)
        return torch.bmm(alpha.unsqueeze(1), x).squeeze(1)


class NRMS(nn.Module):
    """Neural news recommendation with multi-head self-attention.

    Inputs:
        candidates: (B, K, W) word ids of the K candidate titles, 0 for padding.
        history: (B, H, W) word ids of clicked titles; unused slots are all zero.

    Returns click scores (B, K). In training the first candidate is the clicked one:
    ``cross_entropy(scores, zeros)``.
    """

    def __init__(self, vocab_size=3000, word_dim=100, heads=5, head_dim=20, query_dim=64, dropout=0.2):
        super().__init__()
        dim = heads * head_dim
        self.word = nn.Embedding(vocab_size, word_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.title_attn = SelfAttention(word_dim, heads, head_dim)
        self.title_pool = AdditivePooling(dim, query_dim)
        self.user_attn = SelfAttention(dim, heads, head_dim)
        self.user_pool = AdditivePooling(dim, query_dim)

    def encode_news(self, titles):
        """(..., W) -> (..., dim)"""
        flat = titles.reshape(-1, titles.size(-1))
        mask = flat != 0
        x = self.dropout(self.word(flat))
        x = self.dropout(self.title_attn(x, mask))
        return self.title_pool(x, mask).view(*titles.shape[:-1], -1)

    def encode_user(self, history):
        clicked = (history != 0).any(dim=-1)
        news = self.encode_news(history)
        return self.user_pool(self.user_attn(news, clicked), clicked)

    def forward(self, candidates, history):
        user = self.encode_user(history)
        news = self.encode_news(candidates)
        return torch.einsum("bkd,bd->bk", news, user)

    def loss(self, candidates, history):
        scores = self(candidates, history)
        return F.cross_entropy(scores, scores.new_zeros(scores.size(0), dtype=torch.long))
