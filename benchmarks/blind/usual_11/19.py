import math

import torch
import torch.nn as nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)

        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class SeriesTransformer(nn.Module):
    """
    Transformer encoder for multivariate time series.

    Args:
        n_features: number of variables per time step
        d_model, num_heads, num_layers, dim_feedforward, dropout: the usual
        n_out: number of regression targets

    Input x is (batch, time, n_features). lengths is an optional (batch,) tensor with the number of
    valid steps. Returns (batch, time, n_out).
    """

    def __init__(
        self, n_features=8, d_model=64, num_heads=4, num_layers=2, dim_feedforward=128, dropout=0.1, n_out=1
    ):
        super().__init__()
        self.d_model = d_model
        self.input_proj = nn.Linear(n_features, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        layer = nn.TransformerEncoderLayer(d_model, num_heads, dim_feedforward, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, n_out)
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        self.input_proj.weight.data.uniform_(-initrange, initrange)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-initrange, initrange)

    def forward(self, x, lengths=None):
        key_padding_mask = None
        if lengths is not None:
            steps = torch.arange(x.size(1), device=x.device)
            key_padding_mask = steps[None, :] >= lengths[:, None]
        h = self.input_proj(x) * math.sqrt(self.d_model)
        h = self.pos_encoder(h)
        h = self.encoder(h, src_key_padding_mask=key_padding_mask)
        return self.decoder(h)
