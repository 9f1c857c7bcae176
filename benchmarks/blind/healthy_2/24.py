import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class LuongAttention(nn.Module):
    """Global attention with the three score functions of Luong et al. (2015)."""

    def __init__(self, hidden_size, method="general"):
        super().__init__()
        if method not in ("dot", "general", "concat"):
            raise ValueError(f"{method} is not an attention method")
        self.method = method
        if method == "general":
            self.W = nn.Linear(hidden_size, hidden_size, bias=False)
        elif method == "concat":
            self.W = nn.Linear(2 * hidden_size, hidden_size, bias=False)
            self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-0.1, 0.1))

    def score(self, hidden, encoder_outputs):
        if self.method == "dot":
            return torch.einsum("bh,bsh->bs", hidden, encoder_outputs)
        if self.method == "general":
            return torch.einsum("bh,bsh->bs", hidden, self.W(encoder_outputs))
        expanded = hidden.unsqueeze(1).expand_as(encoder_outputs)
        energy = torch.tanh(self.W(torch.cat([expanded, encoder_outputs], dim=2)))
        return energy @ self.v

    def forward(self, hidden, encoder_outputs, pad_mask):
        energies = self.score(hidden, encoder_outputs).masked_fill(pad_mask, float("-inf"))
        return energies.softmax(dim=1)


class LuongSeq2Seq(nn.Module):
    """LSTM encoder-decoder with input feeding.

    Args of forward:
        src:     (B, S) right-padded source ids
        src_len: (B,) source lengths, at least 1
        tgt_in:  (B, T) decoder input (starts with BOS)

    Returns:
        (B, T, tgt_vocab) logits and (B, T, S) attention.
    """

    def __init__(self, src_vocab=4000, tgt_vocab=4000, emb_size=64, hidden_size=128,
                 num_layers=2, method="general", dropout=0.2):
        super().__init__()
        rnn_dropout = dropout if num_layers > 1 else 0.0
        self.src_emb = nn.Embedding(src_vocab, emb_size)
        self.tgt_emb = nn.Embedding(tgt_vocab, emb_size)
        self.encoder = nn.LSTM(emb_size, hidden_size, num_layers, batch_first=True, dropout=rnn_dropout)
        self.decoder = nn.LSTM(emb_size + hidden_size, hidden_size, num_layers, batch_first=True, dropout=rnn_dropout)
        self.attn = LuongAttention(hidden_size, method)
        self.concat = nn.Linear(2 * hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, tgt_vocab)
        self.dropout = nn.Dropout(dropout)

    def encode(self, src, src_len):
        x = self.dropout(self.src_emb(src))
        packed = pack_padded_sequence(x, src_len.cpu(), batch_first=True, enforce_sorted=False)
        out, state = self.encoder(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=src.size(1))
        return out, state

    def step(self, token, attentional, state, memory, pad_mask):
        x = self.dropout(self.tgt_emb(token))
        rnn_in = torch.cat([x, attentional], dim=1).unsqueeze(1)
        top, state = self.decoder(rnn_in, state)
        top = top.squeeze(1)
        weights = self.attn(top, memory, pad_mask)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        attentional = torch.tanh(self.concat(torch.cat([context, top], dim=1)))
        return self.out(self.dropout(attentional)), attentional, state, weights

    def forward(self, src, src_len, tgt_in):
        memory, state = self.encode(src, src_len)
        steps = torch.arange(src.size(1), device=src.device)
        pad_mask = steps.unsqueeze(0) >= src_len.to(src.device).unsqueeze(1)
        attentional = memory.new_zeros(src.size(0), memory.size(2))
        logits, alignments = [], []
        for token in tgt_in.unbind(dim=1):
            step_logits, attentional, state, weights = self.step(token, attentional, state, memory, pad_mask)
            logits.append(step_logits)
            alignments.append(weights)
        return torch.stack(logits, dim=1), torch.stack(alignments, dim=1)
