"""GRU encoder-decoder with Bahdanau attention."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, vocab_size, emb_dim, hidden, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.rnn = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_len):
        embedded = self.dropout(self.embedding(src))
        packed = pack_padded_sequence(embedded, src_len.cpu(), batch_first=True, enforce_sorted=False)
        outputs, hidden = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=src.size(1))
        hidden = torch.tanh(self.fc(torch.cat([hidden[-2], hidden[-1]], dim=1)))
        return outputs, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.Wa = nn.Linear(hidden, hidden)
        self.Ua = nn.Linear(2 * hidden, hidden, bias=False)
        self.Va = nn.Linear(hidden, 1, bias=False)

    def forward(self, query, keys, mask):
        scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys))).squeeze(2)
        scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = F.softmax(scores, dim=1)
        context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
        return context, weights


class Decoder(nn.Module):
    def __init__(self, vocab_size, emb_dim, hidden, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.attention = BahdanauAttention(hidden)
        self.rnn = nn.GRUCell(emb_dim + 2 * hidden, hidden)
        self.fc_out = nn.Linear(hidden + 2 * hidden + emb_dim, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, token, hidden, keys, mask):
        embedded = self.dropout(self.embedding(token))
        context, weights = self.attention(hidden, keys, mask)
        hidden = self.rnn(torch.cat([embedded, context], dim=1), hidden)
        logits = self.fc_out(torch.cat([hidden, context, embedded], dim=1))
        return logits, hidden, weights


class AttentionSeq2Seq(nn.Module):
    """
    src: (B, S) right-padded source ids, src_len: (B,) lengths (>= 1)
    tgt: (B, T) target ids including <sos>
    Returns logits (B, T - 1, V) for tgt[:, 1:] and the alignments (B, T - 1, S).
    ``teacher_forcing_ratio`` is the chance, per step, of feeding the gold token; otherwise the
    model's own prediction is fed. The first input is always <sos>.
    """

    def __init__(self, src_vocab=4000, tgt_vocab=4000, emb_dim=64, hidden=128, dropout=0.3):
        super().__init__()
        self.encoder = Encoder(src_vocab, emb_dim, hidden, dropout)
        self.decoder = Decoder(tgt_vocab, emb_dim, hidden, dropout)

    def forward(self, src, src_len, tgt, teacher_forcing_ratio=1.0):
        keys, hidden = self.encoder(src, src_len)
        mask = torch.arange(src.size(1), device=src.device)[None, :] < src_len.to(src.device)[:, None]
        token = tgt[:, 0]
        logits, alignments = [], []
        for t in range(1, tgt.size(1)):
            step, hidden, weights = self.decoder(token, hidden, keys, mask)
            logits.append(step)
            alignments.append(weights)
            teacher = torch.rand(1).item() < teacher_forcing_ratio
            token = tgt[:, t] if teacher else step.argmax(dim=1)
        return torch.stack(logits, dim=1), torch.stack(alignments, dim=1)

    @torch.no_grad()
    def greedy(self, src, src_len, sos_id, eos_id, max_len=30):
        was_training = self.training
        self.eval()
        keys, hidden = self.encoder(src, src_len)
        mask = torch.arange(src.size(1), device=src.device)[None, :] < src_len.to(src.device)[:, None]
        token = src.new_full((src.size(0),), sos_id)
        finished = torch.zeros_like(token, dtype=torch.bool)
        result = []
        for _ in range(max_len):
            step, hidden, _ = self.decoder(token, hidden, keys, mask)
            token = step.argmax(dim=1).masked_fill(finished, eos_id)
            result.append(token)
            finished = finished | token.eq(eos_id)
            if finished.all():
                break
        self.train(was_training)
        return torch.stack(result, dim=1)
