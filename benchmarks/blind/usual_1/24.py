import torch
import torch.nn as nn


class AdditiveAttention(nn.Module):
    """score(s, h) = v^T tanh(W s + U h), Bahdanau et al. (2015). No scaling: tanh bounds the terms."""

    def __init__(self, query_dim, memory_dim, attn_dim):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attn_dim, bias=False)
        self.memory_layer = nn.Linear(memory_dim, attn_dim, bias=True)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, memory, processed_memory, pad):
        energies = self.v(torch.tanh(self.query_layer(query).unsqueeze(1) + processed_memory)).squeeze(-1)
        energies = energies.masked_fill(pad, -float("inf"))
        weights = torch.softmax(energies, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights


class AttnSeq2SeqDecoder(nn.Module):
    """GRU decoder with additive attention, trained with teacher forcing.

    Args of forward:
        tgt_in: (B, T) input ids, shifted right, starting with <sos>.
        memory: (B, S, memory_dim) encoder outputs.
        src_lengths: (B,) number of valid encoder steps, at least one.

    Returns the logits (B, T, vocab) and the alignments (B, T, S).
    """

    def __init__(self, vocab_size=500, emb_dim=32, memory_dim=64, hidden_dim=64, attn_dim=32, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, emb_dim)
        self.attention = AdditiveAttention(hidden_dim, memory_dim, attn_dim)
        self.cell = nn.GRUCell(emb_dim + memory_dim, hidden_dim)
        self.init_hidden = nn.Linear(memory_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(emb_dim + memory_dim + hidden_dim, vocab_size)

    def forward(self, tgt_in, memory, src_lengths):
        S = memory.size(1)
        pad = torch.arange(S, device=memory.device)[None, :] >= src_lengths[:, None]

        valid = (~pad).unsqueeze(-1).to(memory.dtype)
        mean = (memory * valid).sum(dim=1) / valid.sum(dim=1)
        hidden = torch.tanh(self.init_hidden(mean))
        processed_memory = self.attention.memory_layer(memory)  # the same for all steps

        logits, alignments = [], []
        for emb in self.dropout(self.embed(tgt_in)).unbind(dim=1):
            context, weights = self.attention(hidden, memory, processed_memory, pad)
            hidden = self.cell(torch.cat([emb, context], dim=-1), hidden)
            logits.append(self.out(torch.cat([emb, context, hidden], dim=-1)))
            alignments.append(weights)
        return torch.stack(logits, dim=1), torch.stack(alignments, dim=1)
