import torch
import torch.nn as nn


class AttentiveSpanPooler(nn.Module):
    """Span representations for NER: self-attention over the tokens of each span.

    A global score per token is normalised inside the span, the span vector is the
    weighted sum of its tokens, to which a width embedding is appended.

    tokens: [B, T, D]
    spans:  long [B, S, 2] with start and end; both ends are inclusive, so that a span
            of a single token has start == end.
    """

    def __init__(self, dim: int = 64, max_width: int = 10, width_dim: int = 16):
        super().__init__()
        self.max_width = max_width
        self.scorer = nn.Linear(dim, 1)
        self.width_embedding = nn.Embedding(max_width, width_dim)
        self.proj = nn.Linear(dim + width_dim, dim)

    def forward(self, tokens, spans):
        B, T, D = tokens.shape
        S = spans.size(1)
        starts, ends = spans[..., 0:1], spans[..., 1:2]
        widths = (ends - starts).clamp(0, self.max_width - 1)

        offsets = torch.arange(self.max_width, device=tokens.device)
        index = starts + offsets
        inside = (index < ends) & (index < T)
        index = index.clamp(max=T - 1)

        scores = self.scorer(tokens).squeeze(-1)
        flat = index.view(B, -1)
        span_scores = scores.gather(1, flat).view(B, S, self.max_width)
        span_tokens = tokens.gather(1, flat.unsqueeze(-1).expand(-1, -1, D)).view(B, S, self.max_width, D)

        span_scores = span_scores.masked_fill(~inside, -1e9)
        weights = span_scores.softmax(dim=-1)
        pooled = torch.einsum("bsw,bswd->bsd", weights, span_tokens)

        width = self.width_embedding(widths.squeeze(-1))
        return self.proj(torch.cat([pooled, width], dim=-1))
