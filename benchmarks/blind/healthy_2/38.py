"""NRMS news recommender: multi-head self-attention over words and over clicked news."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, in_dim, heads, head_dim):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.w_q = nn.Linear(in_dim, heads * head_dim, bias=False)
        self.w_k = nn.Linear(in_dim, heads * head_dim, bias=False)
        self.w_v = nn.Linear(in_dim, heads * head_dim, bias=False)

    def forward(self, x, keep):
        n, t, _ = x.shape
        q, k, v = (w(x).view(n, t, self.heads, self.head_dim).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        logits = torch.matmul(q, k.transpose(2, 3)) / self.head_dim ** 0.5
        # finite fill value: empty titles and empty histories occur, they are zeroed when pooled
        logits = logits.masked_fill(~keep[:, None, None, :], torch.finfo(logits.dtype).min)
        out = torch.matmul(logits.softmax(dim=-1), v)
        return out.transpose(1, 2).flatten(2)


class AdditiveAttention(nn.Module):
    def __init__(self, dim, query_dim):
        super().__init__()
        self.proj = nn.Linear(dim, query_dim)
        self.query = nn.Parameter(torch.empty(query_dim).uniform_(-0.1, 0.1))

    def forward(self, x, keep):
        logits = torch.tanh(self.proj(x)) @ self.query
        logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1) * keep.to(logits.dtype)
        return (weights.unsqueeze(-1) * x).sum(dim=-2)


class NRMS(nn.Module):
    """
    Args of forward:
        candidates: (B, C, W) word ids of the candidate titles
        history:    (B, H, W) word ids of the clicked titles
    0 pads titles; a title of zeros is an empty slot (history slots may be empty anywhere).
    Returns the click scores (B, C); a user without clicks scores 0 everywhere.
    """

    def __init__(self, vocab_size=10000, word_dim=100, heads=4, head_dim=16, query_dim=64, dropout=0.2):
        super().__init__()
        dim = heads * head_dim
        self.embedding = nn.Embedding(vocab_size, word_dim, padding_idx=0)
        self.word_attn = MultiHeadSelfAttention(word_dim, heads, head_dim)
        self.word_pool = AdditiveAttention(dim, query_dim)
        self.news_attn = MultiHeadSelfAttention(dim, heads, head_dim)
        self.news_pool = AdditiveAttention(dim, query_dim)
        self.dropout = nn.Dropout(dropout)

    def encode_news(self, titles):
        shape = titles.shape[:-1]
        titles = titles.reshape(-1, titles.size(-1))
        keep = titles.ne(0)
        x = self.dropout(self.embedding(titles))
        x = self.dropout(self.word_attn(x, keep))
        return self.word_pool(x, keep).view(*shape, -1)

    def encode_user(self, history):
        news = self.encode_news(history)
        keep = history.ne(0).any(dim=-1)
        x = self.dropout(self.news_attn(news, keep))
        return self.news_pool(x, keep)

    def forward(self, candidates, history):
        news = self.encode_news(candidates)
        user = self.encode_user(history)
        return torch.einsum("bcd,bd->bc", news, user)

    def loss(self, candidates, history):
        """Softmax loss over one clicked title (column 0) and its sampled negatives."""
        scores = self(candidates, history)
        return F.cross_entropy(scores, scores.new_zeros(scores.size(0), dtype=torch.long))
