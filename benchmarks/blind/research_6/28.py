import math

import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """Greedy pointer decoder for routing problems.

    Gets the encoded nodes [B, N, D] and builds a tour: in every step the LSTM state
    attends to the nodes (a glimpse, then the pointer with clipped logits), the best node
    that has not been visited yet is taken.

    Returns tour [B, N] and the summed log probability [B].
    """

    def __init__(self, dim=64, num_heads=4, tanh_clipping=10.0):
        super().__init__()
        self.num_heads = num_heads
        self.clip = tanh_clipping
        self.cell = nn.LSTMCell(dim, dim)
        self.first = nn.Parameter(torch.randn(dim) / math.sqrt(dim))
        self.glimpse_q = nn.Linear(dim, dim, bias=False)
        self.glimpse_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.glimpse_out = nn.Linear(dim, dim, bias=False)
        self.pointer_k = nn.Linear(dim, dim, bias=False)

    def forward(self, nodes):
        B, N, D = nodes.shape
        H = self.num_heads
        gk, gv = self.glimpse_kv(nodes).chunk(2, dim=-1)
        gk = gk.reshape(B, N, H, D // H).transpose(1, 2)
        gv = gv.reshape(B, N, H, D // H).transpose(1, 2)
        pk = self.pointer_k(nodes)

        h = nodes.mean(dim=1)
        c = torch.zeros_like(h)
        inp = self.first.expand(B, -1)
        visited = torch.zeros(B, N, dtype=torch.bool, device=nodes.device)
        tour, log_p = [], nodes.new_zeros(B)

        for _ in range(N):
            h, c = self.cell(inp, (h, c))

            q = self.glimpse_q(h).view(B, H, 1, D // H)
            compat = (q @ gk.transpose(-1, -2)) / math.sqrt(D // H)
            compat = compat.masked_fill(visited[:, None, None, :], float("-inf"))
            glimpse = (compat.softmax(-1) @ gv).reshape(B, D)
            glimpse = self.glimpse_out(glimpse)

            logits = torch.bmm(pk, glimpse.unsqueeze(-1)).squeeze(-1) / math.sqrt(D)
            logits = self.clip * torch.tanh(logits)
            logits = logits.masked_fill(visited, float("-inf"))
            logp = logits.log_softmax(dim=-1)

            choice = logp.argmax(dim=-1, keepdim=True)
            visited.scatter(1, choice, True)
            tour.append(choice)
            log_p = log_p + logp.gather(1, choice).squeeze(1)
            inp = nodes.gather(1, choice.unsqueeze(-1).expand(-1, -1, D)).squeeze(1)

        return torch.cat(tour, dim=1), log_p
