import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GatedResidual(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, 2 * dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = self.fc2(self.dropout(F.elu(self.fc1(x))))
        return self.norm(x + F.glu(h, dim=-1))


class InterpretableAttention(nn.Module):
    """Multi-head attention with one value projection shared by all heads, heads are averaged.

    The mean attention matrix therefore is exactly the matrix applied to the values.
    """

    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.d_head = dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, self.d_head)
        self.out = nn.Linear(self.d_head, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, memory, blocked):
        b, n, _ = query.shape
        m = memory.size(1)
        q = self.q(query).reshape(b, n, self.num_heads, self.d_head).transpose(1, 2)
        k = self.k(memory).reshape(b, m, self.num_heads, self.d_head).transpose(1, 2)
        score = q @ k.transpose(-1, -2) / math.sqrt(self.d_head)
        score = score.masked_fill(blocked, float("-inf"))
        weights = score.softmax(dim=-1).mean(dim=1)  # (b, n, m)
        return self.out(self.dropout(weights) @ self.v(memory)), weights


class TemporalFusionForecaster(nn.Module):
    """Probabilistic multi-horizon forecaster.

    Args of forward:
        past_values:     (B, T) target history
        past_observed:   (B, T) bool, False where the target is missing
        past_covariates: (B, T, C) inputs known only for the past
        past_time:       (B, T, K) calendar features of the past
        future_time:     (B, H, K) calendar features of the horizon
        static_ids:      (B,) id of the series

    Returns quantile forecasts (B, H, Q) in the units of ``past_values`` and the
    attention weights (B, H, T + H).
    """

    def __init__(self, num_series=100, num_covariates=3, num_time_features=4, dim=64,
                 num_heads=4, dropout=0.1, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.quantiles = tuple(quantiles)
        self.series = nn.Embedding(num_series, dim)
        self.past_in = nn.Linear(2 + num_covariates + num_time_features, dim)
        self.future_in = nn.Linear(num_time_features, dim)
        self.encoder = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.lstm_norm = nn.LayerNorm(dim)
        self.enrich = GatedResidual(dim, dropout)
        self.attention = InterpretableAttention(dim, num_heads, dropout)
        self.attn_norm = nn.LayerNorm(dim)
        self.post = GatedResidual(dim, dropout)
        self.head = nn.Linear(dim, len(self.quantiles))

    @staticmethod
    def _scale(values, observed):
        w = observed.to(values.dtype)
        total = (values.abs() * w).sum(dim=1, keepdim=True)
        mean = total / w.sum(dim=1, keepdim=True).clamp(min=1.0)
        return torch.where(mean > 1e-8, mean, torch.ones_like(mean))

    def forward(self, past_values, past_observed, past_covariates, past_time, future_time, static_ids):
        T, H = past_values.size(1), future_time.size(1)
        # the raw value of a missing step may be anything, NaN included
        past_values = past_values.masked_fill(~past_observed, 0.0)
        scale = self._scale(past_values, past_observed)
        flags = past_observed.to(past_values.dtype)
        past = torch.cat(
            [(past_values / scale).unsqueeze(-1), flags.unsqueeze(-1), past_covariates, past_time], dim=-1
        )
        static = self.series(static_ids).unsqueeze(1)
        past = self.past_in(past) + static
        future = self.future_in(future_time) + static

        enc, state = self.encoder(past)
        dec, _ = self.decoder(future, state)
        seq = self.lstm_norm(torch.cat([enc + past, dec + future], dim=1))
        seq = self.enrich(seq)

        steps = torch.arange(T + H, device=seq.device)
        blocked = steps.unsqueeze(0) > steps[T:].unsqueeze(1)  # (H, T + H)
        query = seq[:, T:]
        ctx, weights = self.attention(query, seq, blocked)
        out = self.post(self.attn_norm(query + ctx))
        return self.head(out) * scale.unsqueeze(-1), weights

    def loss(self, forecast, target):
        """Pinball loss, averaged over series, steps and quantiles."""
        q = forecast.new_tensor(self.quantiles)
        err = target.unsqueeze(-1) - forecast
        return torch.maximum(q * err, (q - 1) * err).mean()
