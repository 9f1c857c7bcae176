import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttention(nn.Module):
    """Luong's "general" score followed by the attentional hidden state.

    query:  (batch, tgt_len, hidden), states of the decoder
    memory: (batch, src_len, hidden), states of the encoder
    memory_mask: (batch, src_len), 1 for tokens and 0 for padding
    """

    def __init__(self, hidden=64):
        super().__init__()
        self.W_a = nn.Linear(hidden, hidden, bias=False)
        self.W_c = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, query, memory, memory_mask=None):
        scores = torch.bmm(query, self.W_a(memory).transpose(1, 2))
        if memory_mask is not None:
            scores = scores.masked_fill(memory_mask.unsqueeze(1) == 0, float("-inf"))
        align = F.softmax(scores, dim=1)
        align = torch.nan_to_num(align)
        context = torch.bmm(align, memory)
        attentional = torch.tanh(self.W_c(torch.cat([context, query], dim=-1)))
        return attentional, align
