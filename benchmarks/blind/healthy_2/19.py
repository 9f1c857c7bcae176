"""Pointer-generator summariser with coverage (See et al., 2017)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class CoverageAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w_h = nn.Linear(dim, dim, bias=False)
        self.w_s = nn.Linear(dim, dim)
        self.w_c = nn.Linear(1, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, features, states, s, coverage, mask):
        e = features + self.w_s(s).unsqueeze(1) + self.w_c(coverage.unsqueeze(-1))
        e = self.v(torch.tanh(e)).squeeze(-1).masked_fill(~mask, float("-inf"))
        a = e.softmax(dim=-1)
        return torch.bmm(a.unsqueeze(1), states).squeeze(1), a


class PointerGenerator(nn.Module):
    """
    forward(src, src_ext, src_len, tgt_in, max_oov):
        src      (B, S) source ids with out-of-vocabulary words mapped to ``unk_id``
        src_ext  (B, S) the same, but OOV words numbered vocab_size, vocab_size + 1, ... per article
        src_len  (B,)   lengths, at least 1
        tgt_in   (B, T) decoder input, starting with BOS; may contain extended ids
        max_oov  int    number of extra ids in this batch
    returns log-probabilities (B, T, vocab_size + max_oov), attention (B, T, S) and the mean
    coverage loss over the non-padding steps.
    """

    def __init__(self, vocab_size=5000, emb_dim=64, dim=128, pad_id=0, unk_id=1, dropout=0.1):
        super().__init__()
        assert dim % 2 == 0
        self.vocab_size, self.pad_id, self.unk_id = vocab_size, pad_id, unk_id
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=pad_id)
        self.encoder = nn.LSTM(emb_dim, dim // 2, batch_first=True, bidirectional=True)
        self.reduce_h = nn.Linear(dim, dim)
        self.reduce_c = nn.Linear(dim, dim)
        self.decoder = nn.LSTMCell(emb_dim + dim, dim)
        self.attention = CoverageAttention(dim)
        self.p_gen = nn.Linear(2 * dim + emb_dim, 1)
        self.out = nn.Sequential(nn.Linear(2 * dim, dim), nn.Linear(dim, vocab_size))
        self.dropout = nn.Dropout(dropout)

    def encode(self, src, src_len):
        emb = self.dropout(self.embedding(src))
        packed = pack_padded_sequence(emb, src_len.cpu(), batch_first=True, enforce_sorted=False)
        states, (h, c) = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=src.size(1))
        h = torch.relu(self.reduce_h(torch.cat([h[0], h[1]], dim=-1)))
        c = torch.relu(self.reduce_c(torch.cat([c[0], c[1]], dim=-1)))
        return states, (h, c)

    def forward(self, src, src_ext, src_len, tgt_in, max_oov=0):
        B, S = src.shape
        states, (h, c) = self.encode(src, src_len)
        mask = torch.arange(S, device=src.device)[None, :] < src_len.to(src.device)[:, None]
        features = self.attention.w_h(states)
        # copied words have no embedding of their own
        words = self.dropout(self.embedding(tgt_in.masked_fill(tgt_in >= self.vocab_size, self.unk_id)))
        context = states.new_zeros(B, states.size(-1))
        coverage = states.new_zeros(B, S)
        extra = states.new_zeros(B, max_oov)

        log_probs, attentions, cov_losses = [], [], []
        for t in range(tgt_in.size(1)):
            x = words[:, t]
            h, c = self.decoder(torch.cat([x, context], dim=-1), (h, c))
            context, a = self.attention(features, states, h, coverage, mask)
            cov_losses.append(torch.minimum(a, coverage).sum(dim=-1))
            coverage = coverage + a

            p_vocab = self.out(torch.cat([h, context], dim=-1)).softmax(dim=-1)
            p_gen = torch.sigmoid(self.p_gen(torch.cat([context, h, x], dim=-1)))
            p = torch.cat([p_gen * p_vocab, extra], dim=-1)
            # scatter_add sums the attention of repeated source words; padding contributes 0
            p = p.scatter_add(1, src_ext, (1 - p_gen) * a)
            log_probs.append(torch.log(p + 1e-10))
            attentions.append(a)

        real = tgt_in.ne(self.pad_id).to(states.dtype)
        cov_loss = (torch.stack(cov_losses, dim=1) * real).sum() / real.sum().clamp(min=1.0)
        return torch.stack(log_probs, dim=1), torch.stack(attentions, dim=1), cov_loss

    def loss(self, src, src_ext, src_len, tgt_in, tgt_out, max_oov=0, coverage_weight=1.0):
        log_probs, _, cov_loss = self(src, src_ext, src_len, tgt_in, max_oov)
        nll = F.nll_loss(log_probs.flatten(0, 1), tgt_out.flatten(), ignore_index=self.pad_id)
        return nll + coverage_weight * cov_loss
