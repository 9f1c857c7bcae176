import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden, pad):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=pad)
        self.rnn = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.embedding(src), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, h = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=src.size(1))
        # h: (2, B, hidden), last states of the forward and of the backward direction
        return out, torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1)))


class AdditiveAttention(nn.Module):
    """Bahdanau attention. The projected memory is computed once per sentence."""

    def __init__(self, query_dim, memory_dim, attn_dim):
        super().__init__()
        self.query = nn.Linear(query_dim, attn_dim, bias=False)
        self.memory = nn.Linear(memory_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, memory, projected, mask):
        energy = self.v(torch.tanh(self.query(query).unsqueeze(1) + projected)).squeeze(-1)
        energy = energy.masked_fill(~mask, float("-inf"))
        weights = F.softmax(energy, dim=-1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights


class AttentionSeq2Seq(nn.Module):
    """RNN translation model with additive attention.

    Inputs of ``forward``:
        src: (B, S) source ids, right padded; lengths: (B,) all >= 1.
        tgt: (B, T) target ids, ``<s>`` first, right padded.
        teacher_forcing: probability of feeding the reference word, drawn once per step.

    Returns logits (B, T - 1, V) for tgt[:, 1:] and the attention (B, T - 1, S).
    """

    def __init__(self, src_vocab=800, tgt_vocab=900, emb=64, hidden=128, attn_dim=96, dropout=0.2,
                 pad=0, bos=1, eos=2):
        super().__init__()
        self.pad, self.bos, self.eos = pad, bos, eos
        self.encoder = Encoder(src_vocab, emb, hidden, pad)
        self.embedding = nn.Embedding(tgt_vocab, emb, padding_idx=pad)
        self.attention = AdditiveAttention(hidden, 2 * hidden, attn_dim)
        self.cell = nn.GRUCell(emb + 2 * hidden, hidden)
        self.readout = nn.Linear(hidden + 2 * hidden + emb, tgt_vocab)
        self.dropout = nn.Dropout(dropout)

    def start(self, src, lengths):
        memory, state = self.encoder(src, lengths)
        steps = torch.arange(src.size(1), device=src.device)
        mask = steps[None, :] < lengths.to(src.device)[:, None]
        return state, (memory, self.attention.memory(memory), mask)

    def step(self, token, state, source):
        emb = self.dropout(self.embedding(token))
        context, weights = self.attention(state, *source)  # the query is the previous state
        state = self.cell(torch.cat([emb, context], dim=-1), state)
        logits = self.readout(self.dropout(torch.cat([state, context, emb], dim=-1)))
        return logits, state, weights

    def forward(self, src, lengths, tgt, teacher_forcing=1.0):
        state, source = self.start(src, lengths)
        token = tgt[:, 0]
        all_logits, all_weights = [], []
        for t in range(1, tgt.size(1)):
            logits, state, weights = self.step(token, state, source)
            all_logits.append(logits)
            all_weights.append(weights)
            use_reference = teacher_forcing >= 1.0 or torch.rand(()).item() < teacher_forcing
            token = tgt[:, t] if use_reference else logits.argmax(dim=-1)
        return torch.stack(all_logits, dim=1), torch.stack(all_weights, dim=1)

    @torch.no_grad()
    def translate(self, src, lengths, max_len=50):
        """Greedy. (B, n) ids without ``<s>``, padded after ``</s>``."""
        state, source = self.start(src, lengths)
        token = src.new_full((src.size(0),), self.bos)
        done = torch.zeros_like(token, dtype=torch.bool)
        words = []
        for _ in range(max_len):
            logits, state, _ = self.step(token, state, source)
            token = logits.argmax(dim=-1).masked_fill(done, self.pad)
            words.append(token)
            done |= token == self.eos
            if done.all():
                break
        return torch.stack(words, dim=1)
