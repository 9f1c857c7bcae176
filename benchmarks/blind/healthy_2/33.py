"""Listen, attend and spell with location-aware attention (Chan et al.; Chorowski et al.)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class PyramidalBLSTM(nn.Module):
    """BLSTM over pairs of neighbouring frames: halves the time resolution."""

    def __init__(self, in_dim, hidden):
        super().__init__()
        self.rnn = nn.LSTM(2 * in_dim, hidden, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        # frames behind an utterance's end are zero, so an odd last frame is paired with zeros
        if x.size(1) % 2:
            x = F.pad(x, (0, 0, 0, 1))
        x = x.reshape(x.size(0), x.size(1) // 2, 2 * x.size(2))
        lengths = torch.div(lengths + 1, 2, rounding_mode="floor")
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.size(1))
        return out, lengths


class LocationAwareAttention(nn.Module):
    def __init__(self, enc_dim, dec_dim, att_dim, channels=10, kernel_size=31):
        super().__init__()
        assert kernel_size % 2 == 1
        self.key = nn.Linear(enc_dim, att_dim)
        self.query = nn.Linear(dec_dim, att_dim, bias=False)
        self.loc_conv = nn.Conv1d(1, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.loc_proj = nn.Linear(channels, att_dim, bias=False)
        self.energy = nn.Linear(att_dim, 1, bias=False)

    def forward(self, state, keys, memory, prev, mask):
        loc = self.loc_proj(self.loc_conv(prev.unsqueeze(1)).transpose(1, 2))
        e = self.energy(torch.tanh(keys + self.query(state).unsqueeze(1) + loc)).squeeze(-1)
        w = e.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return torch.bmm(w.unsqueeze(1), memory).squeeze(1), w


class ListenAttendSpell(nn.Module):
    """
    forward(features, feature_len, targets)
        features    (B, T, n_mels), whatever lies behind ``feature_len`` is ignored
        feature_len (B,) at least 1
        targets     (B, U) decoder input starting with SOS; position u predicts u + 1
    returns logits (B, U, vocab) and alignments (B, U, ceil(T / 4)).
    """

    def __init__(self, n_mels=40, vocab_size=30, hidden=64, emb_dim=32, att_dim=64, dropout=0.1):
        super().__init__()
        self.listener = nn.ModuleList([PyramidalBLSTM(n_mels, hidden), PyramidalBLSTM(2 * hidden, hidden)])
        enc_dim = 2 * hidden
        dec_dim = 2 * hidden
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.attention = LocationAwareAttention(enc_dim, dec_dim, att_dim)
        self.speller = nn.LSTMCell(emb_dim + enc_dim, dec_dim)
        self.out = nn.Linear(dec_dim + enc_dim, vocab_size)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def _mask(lengths, size, device):
        return torch.arange(size, device=device)[None, :] < lengths.to(device)[:, None]

    def listen(self, features, feature_len):
        x = features.masked_fill(~self._mask(feature_len, features.size(1), features.device).unsqueeze(-1), 0.0)
        lengths = feature_len
        for layer in self.listener:
            x, lengths = layer(x, lengths)
        return x, self._mask(lengths, x.size(1), x.device)

    def forward(self, features, feature_len, targets):
        memory, mask = self.listen(features, feature_len)
        keys = self.attention.key(memory)
        B = memory.size(0)
        h = memory.new_zeros(B, self.speller.hidden_size)
        c = torch.zeros_like(h)
        # before the first step the alignment is uniform over the real frames
        align = mask.to(memory.dtype)
        align = align / align.sum(dim=1, keepdim=True)
        context = torch.bmm(align.unsqueeze(1), memory).squeeze(1)
        words = self.dropout(self.embedding(targets))

        logits, alignments = [], []
        for u in range(targets.size(1)):
            h, c = self.speller(torch.cat([words[:, u], context], dim=-1), (h, c))
            context, align = self.attention(h, keys, memory, align, mask)
            logits.append(self.out(self.dropout(torch.cat([h, context], dim=-1))))
            alignments.append(align)
        return torch.stack(logits, dim=1), torch.stack(alignments, dim=1)
