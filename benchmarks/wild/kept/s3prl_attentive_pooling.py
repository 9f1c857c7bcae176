"""The boolean length mask is added to the pooling logits as 0/1, so padded frames keep their weight.

s3prl/s3prl #579 (2026)
https://github.com/s3prl/s3prl/issues/579
"""
import torch
import torch.nn as nn


class _AttentivePoolingBase(nn.Module):
    """Attentive pooling over frames, one scalar score per frame."""

    def __init__(self, input_dim, activation="ReLU"):
        super().__init__()
        self.W_a = nn.Linear(input_dim, input_dim)
        self.W = nn.Linear(input_dim, 1)
        self.act_fn = getattr(nn, activation)()
        self.softmax = nn.functional.softmax


class _UtteranceLevel(nn.Module):
    """Project frames, pool them over time, classify the utterance."""

    def __init__(self, pooling, input_dim, hidden, output_dim):
        super().__init__()
        self.projector = nn.Linear(input_dim, hidden)
        self.pooling = pooling
        self.model = nn.Linear(hidden, output_dim)

    def forward(self, features, features_len):
        """
        Args:
            features: (B, T, input_dim) padded frame features
            features_len: (B,) number of valid frames of every utterance
        """
        features = self.projector(features)
        positions = torch.arange(features.size(1), device=features.device)
        att_mask = positions[None, :] < features_len[:, None]
        pooled, _ = self.pooling(features, att_mask)
        return self.model(pooled)


def broken() -> nn.Module:
    class AttentivePoolingModule(_AttentivePoolingBase):
        def forward(self, batch_rep, att_mask):
            """
            input:
            batch_rep : size (B, T, H)
            att_mask : size (B, T), True for valid frames

            return:
            utter_rep: size (B, H), att_w: size (B, T, 1)
            """
            att_logits = self.W(self.act_fn(self.W_a(batch_rep))).squeeze(-1)
            att_logits = att_mask + att_logits
            att_w = self.softmax(att_logits, dim=-1).unsqueeze(-1)
            utter_rep = torch.sum(batch_rep * att_w, dim=1)
            return utter_rep, att_w

    torch.manual_seed(0)
    return _UtteranceLevel(AttentivePoolingModule(32), 20, 32, 6)


def fixed() -> nn.Module:
    class AttentivePoolingModule(_AttentivePoolingBase):
        def forward(self, batch_rep, att_mask):
            """
            input:
            batch_rep : size (B, T, H)
            att_mask : size (B, T), True for valid frames

            return:
            utter_rep: size (B, H), att_w: size (B, T, 1)
            """
            att_logits = self.W(self.act_fn(self.W_a(batch_rep))).squeeze(-1)
            att_logits = att_logits.masked_fill(~att_mask, -1e9)
            att_w = self.softmax(att_logits, dim=-1).unsqueeze(-1)
            utter_rep = torch.sum(batch_rep * att_w, dim=1)
            return utter_rep, att_w

    torch.manual_seed(0)
    return _UtteranceLevel(AttentivePoolingModule(32), 20, 32, 6)


def example():
    g = torch.Generator().manual_seed(2)
    features = torch.randn(3, 12, 20, generator=g)
    features_len = torch.tensor([12, 7, 9])
    for i, n in enumerate(features_len.tolist()):
        features[i, n:] = 0
    return (features, features_len), {}
