import torch
from torch import nn


class SpanRepresentation(nn.Module):
    """Span encoder for mention detection and coreference (after Lee et al., 2017).

    A span (start, end), with *both ends inclusive*, is represented by its first state, its last state, an
    attention-weighted mean of its own states (the soft head word) and an embedding of its width.

    Args:
        dim: width of token states.
        max_width: longest span, in tokens.
        width_dim: size of the width embedding.
        out_dim: size of the result.
    """

    def __init__(self, dim=128, max_width=10, width_dim=20, out_dim=128, dropout=0.2):
        super().__init__()
        self.max_width = max_width
        self.head_scorer = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, 1))
        self.width_emb = nn.Embedding(max_width, width_dim)
        self.out = nn.Sequential(nn.Linear(3 * dim + width_dim, out_dim), nn.GELU(), nn.LayerNorm(out_dim))

    def soft_head(self, states, start, end):
        scores = self.head_scorer(states).squeeze(-1)
        pos = torch.arange(states.size(1), device=states.device)
        inside = (pos >= start.unsqueeze(-1)) & (pos < end.unsqueeze(-1))
        scores = scores.unsqueeze(1).expand(inside.shape)
        scores = scores.masked_fill(~inside, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(dim=-1), states)

    def forward(self, states, spans):
        """states: [B, T, dim]; spans: [B, S, 2] token indices. Returns [B, S, out_dim]."""
        start, end = spans.unbind(-1)
        index = start.unsqueeze(-1).expand(-1, -1, states.size(-1))
        first = states.gather(1, index)
        last = states.gather(1, end.unsqueeze(-1).expand_as(index))
        head = self.soft_head(states, start, end)
        width = self.width_emb((end - start).clamp(0, self.max_width - 1))
        return self.out(torch.cat([first, last, head, width], dim=-1))
