import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention.

    query:  (B, dec_dim)      decoder state of the previous step
    keys:   (B, T, enc_dim)   encoder outputs
    mask:   (B, T) bool, True at real encoder positions
    """

    def __init__(self, enc_dim, dec_dim, attn_dim):
        super().__init__()
        self.W_q = nn.Linear(dec_dim, attn_dim, bias=False)
        self.W_k = nn.Linear(enc_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        energy = self.v(torch.tanh(self.W_q(query).unsqueeze(1) + self.W_k(keys)))
        if mask is not None:
            energy = energy.masked_fill(~mask.unsqueeze(-1), -1e4)
        weights = F.softmax(energy, dim=-1)
        context = torch.sum(weights * keys, dim=1)
        return context, weights.squeeze(-1)


class AttnDecoder(nn.Module):
    def __init__(self, vocab_size=100, emb_dim=32, enc_dim=48, dec_dim=64, attn_dim=32, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.attention = BahdanauAttention(enc_dim, dec_dim, attn_dim)
        self.rnn = nn.GRUCell(emb_dim + enc_dim, dec_dim)
        self.init = nn.Linear(enc_dim, dec_dim)
        self.out = nn.Linear(dec_dim + enc_dim + emb_dim, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, targets, enc_out, enc_mask=None):
        """Teacher forcing over targets (B, L). Returns logits (B, L, V) and weights (B, L, T)."""
        state = torch.tanh(self.init(enc_out.mean(dim=1)))
        emb = self.dropout(self.embedding(targets))
        logits, attns = [], []
        for t in range(targets.size(1)):
            context, w = self.attention(state, enc_out, enc_mask)
            state = self.rnn(torch.cat([emb[:, t], context], dim=-1), state)
            logits.append(self.out(torch.cat([state, context, emb[:, t]], dim=-1)))
            attns.append(w)
        return torch.stack(logits, dim=1), torch.stack(attns, dim=1)
