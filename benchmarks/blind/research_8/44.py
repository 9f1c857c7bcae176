import torch
import torch.nn as nn


class AttentivePool(nn.Module):
    """Yang et al. (2016): u = tanh(W h + b), weights = softmax(u . context). Rows without any element pool to zero."""

    def __init__(self, dim, att_dim):
        super().__init__()
        self.proj = nn.Linear(dim, att_dim)
        self.context = nn.Linear(att_dim, 1, bias=False)

    def forward(self, h, mask):
        score = self.context(torch.tanh(self.proj(h))).squeeze(-1)
        score = score.masked_fill(~mask, torch.finfo(score.dtype).min)
        w = torch.softmax(score, dim=1) * mask
        return (w.unsqueeze(-1) * h).sum(dim=1), w


class HierarchicalAttentionNetwork(nn.Module):
    """Document classifier. docs: [B, S, W] word ids, 0 = padding; a sentence of zeros only is padding as well."""

    def __init__(self, vocab_size=500, emb_dim=32, hidden=24, att_dim=32, num_classes=5):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_rnn = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.word_pool = AttentivePool(2 * hidden, att_dim)
        self.sent_rnn = nn.GRU(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.sent_pool = AttentivePool(2 * hidden, att_dim)
        self.fc = nn.Linear(2 * hidden, num_classes)

    @staticmethod
    def _run(rnn, x, mask):
        steps = torch.arange(1, mask.size(1) + 1, device=mask.device)
        lengths = (mask * steps).amax(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.size(1))[0]

    def forward(self, docs):
        b, s, w = docs.shape
        words = docs.view(b * s, w)
        word_mask = words != 0
        h = self._run(self.word_rnn, self.emb(words), word_mask)
        sents, word_w = self.word_pool(h, word_mask)

        sents = sents.view(b, s, -1)
        sent_mask = word_mask.any(1).view(b, s)
        h = self._run(self.sent_rnn, sents, sent_mask)
        doc, sent_w = self.sent_pool(h, sent_mask)
        return self.fc(doc), word_w.view(b, s, w), sent_w
