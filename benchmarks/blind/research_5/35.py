import torch
import torch.nn as nn


class SpanEntityClassifier(nn.Module):
    """Scores candidate spans for named entities.

    A span is described by its first and last token, a learned width embedding and an attention
    weighted sum of its tokens ("head finding" attention, Lee et al., 2017).

    Args:
        tokens: encoder output ``[B, T, dim]``
        spans: ``[B, S, 2]`` long, index of the first and of the last token of each span
    Returns:
        logits ``[B, S, num_labels]`` and the attention of each span ``[B, S, T]``
    """

    def __init__(self, dim=64, num_labels=5, max_width=8, width_dim=16, hidden=128, dropout=0.2):
        super().__init__()
        self.max_width = max_width
        self.token_score = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.width_embedding = nn.Embedding(max_width, width_dim)
        self.classifier = nn.Sequential(
            nn.Linear(3 * dim + width_dim, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_labels),
        )

    @staticmethod
    def _pick(tokens, index):
        return tokens.gather(1, index.unsqueeze(-1).expand(-1, -1, tokens.size(-1)))

    def forward(self, tokens, spans):
        start, end = spans.unbind(dim=-1)
        position = torch.arange(tokens.size(1), device=tokens.device)
        inside = (position >= start.unsqueeze(-1)) & (position < end.unsqueeze(-1))

        scores = self.token_score(tokens).squeeze(-1).unsqueeze(1)
        scores = scores.expand(-1, spans.size(1), -1).masked_fill(~inside, -1e9)
        attention = scores.softmax(dim=-1)
        head = attention @ tokens

        width = (end - start).clamp(min=0, max=self.max_width - 1)
        features = torch.cat(
            [self._pick(tokens, start), self._pick(tokens, end), head, self.width_embedding(width)], dim=-1
        )
        return self.classifier(features), attention
