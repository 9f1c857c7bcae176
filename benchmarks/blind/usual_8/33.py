import torch
import torch.nn as nn


class GlobalAttention(nn.Module):
    """Luong attention with the "general" or "dot" score.

    At each decoder step: a context vector from the encoder states, then the attentional
    hidden state tanh(W [context; hidden]).
    """

    def __init__(self, dim=64, attn_type="general"):
        super().__init__()
        assert attn_type in ("dot", "general")
        self.dim = dim
        self.attn_type = attn_type
        if attn_type == "general":
            self.linear_in = nn.Linear(dim, dim, bias=False)
        self.linear_out = nn.Linear(dim * 2, dim, bias=False)

    def score(self, h_t, h_s):
        if self.attn_type == "general":
            h_t = self.linear_in(h_t)
        return torch.bmm(h_t, h_s.transpose(1, 2))

    def forward(self, source, memory_bank, memory_lengths=None):
        """
        Args:
            source: decoder states, (batch, tgt_len, dim)
            memory_bank: encoder states, (batch, src_len, dim)
            memory_lengths: number of valid encoder states of each example, (batch,)

        Returns:
            attentional states (batch, tgt_len, dim), weights (batch, tgt_len, src_len)
        """
        align = self.score(source, memory_bank)

        if memory_lengths is not None:
            steps = torch.arange(memory_bank.size(1), device=memory_bank.device)
            padding = steps[None, :] > memory_lengths[:, None]
            align = align.masked_fill(padding.unsqueeze(1), -float("inf"))

        align_vectors = torch.softmax(align, dim=-1)
        c = torch.bmm(align_vectors, memory_bank)

        attn_h = self.linear_out(torch.cat([c, source], dim=2))
        return torch.tanh(attn_h), align_vectors
