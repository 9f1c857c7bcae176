import torch
import torch.nn as nn


class InvertedTransformer(nn.Module):
    """Multivariate forecaster that treats each variate as one token.

    The lookback window of a variate is embedded as a whole and self-attention relates the
    variates of a sample to one another.

    x: [B, seq_len, num_variates]  ->  [B, pred_len, num_variates]
    """

    def __init__(
        self,
        seq_len: int = 48,
        pred_len: int = 24,
        d_model: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
        d_ff: int = 128,
        dropout: float = 0.0,
        use_norm: bool = True,
    ):
        super().__init__()
        self.use_norm = use_norm
        self.embedding = nn.Linear(seq_len, d_model)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            d_model,
            num_heads,
            dim_feedforward=d_ff,
            dropout=dropout,
            activation="gelu",
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, norm=nn.LayerNorm(d_model))
        self.projector = nn.Linear(d_model, pred_len)

    def forward(self, x):
        if self.use_norm:
            mean = x.mean(dim=1, keepdim=True).detach()
            x = x - mean
            std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
            x = x / std

        tokens = self.dropout(self.embedding(x.transpose(1, 2)))
        tokens = self.encoder(tokens)
        y = self.projector(tokens).transpose(1, 2)

        if self.use_norm:
            y = y * std + mean
        return y
