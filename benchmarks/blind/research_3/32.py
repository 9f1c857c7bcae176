import torch
import torch.nn as nn


class AdditivePooling(nn.Module):
    """Word level: u = tanh(Wh + b), softmax(u . context) over the words of a sentence."""

    def __init__(self, dim, att_dim):
        super().__init__()
        self.proj = nn.Linear(dim, att_dim)
        self.context = nn.Linear(att_dim, 1, bias=False)

    def forward(self, h, mask):
        score = self.context(torch.tanh(self.proj(h))).squeeze(-1)
        score = score.masked_fill(~mask, -1e9)
        alpha = torch.softmax(score, dim=-1)
        return torch.sum(alpha.unsqueeze(-1) * h, dim=1), alpha


class HierarchicalDocumentEncoder(nn.Module):
    """Words -> sentence vectors (additive attention), sentences -> document vector
    (self attention, then the mean of the sentences).

    docs:      LongTensor [B, S, W], 0 = padding; short documents are filled up with
               empty sentences at the end.
    Returns the document vector [B, dim] and the word weights [B, S, W].
    """

    def __init__(self, vocab_size=200, dim=32, num_heads=4, att_dim=32, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.emb = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.word_pool = AdditivePooling(dim, att_dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def sentence_attention(self, s, sent_mask):
        B, S, D = s.shape
        q, k, v = self.qkv(s).chunk(3, dim=-1)
        q, k, v = (t.view(B, S, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (D // self.num_heads) ** 0.5
        scores = scores.masked_fill(~sent_mask[:, None, None, :], -1e9)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(B, S, D)
        return self.norm(s + self.dropout(self.out(out)))

    def forward(self, docs):
        B, S, W = docs.shape
        word_mask = docs != 0
        sent_mask = word_mask.any(dim=-1)

        h = self.emb(docs).view(B * S, W, -1)
        s, alpha = self.word_pool(h, word_mask.view(B * S, W))
        s = s.view(B, S, -1)

        s = self.sentence_attention(s, sent_mask)
        s = s * sent_mask.unsqueeze(-1)
        doc = s.mean(dim=1)
        return doc, alpha.view(B, S, W)
