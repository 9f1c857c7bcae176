from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvFeatureExtractor(nn.Module):
    def __init__(self, dim: int, conv_layers: List[Tuple[int, int, int]]):
        super().__init__()
        self.layers = nn.ModuleList()
        in_d = 1
        for (c, k, stride) in conv_layers:
            self.layers.append(nn.ModuleDict({
                "conv": nn.Conv1d(in_d, c, k, stride=stride, bias=False),
                "norm": nn.LayerNorm(c),
            }))
            in_d = c
        self.post_extract_proj = nn.Linear(in_d, dim)

    def forward(self, x):
        x = x.unsqueeze(1)
        for layer in self.layers:
            x = layer["conv"](x)
            x = F.gelu(layer["norm"](x.transpose(1, 2))).transpose(1, 2)
        return self.post_extract_proj(x.transpose(1, 2))


class EncoderLayer(nn.Module):
    def __init__(self, dim, ffn_dim, heads, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, self_attn_padding_mask=None):
        y, _ = self.self_attn(x, x, x, key_padding_mask=self_attn_padding_mask, need_weights=False)
        x = self.self_attn_layer_norm(x + self.dropout(y))
        y = self.fc2(self.dropout(F.gelu(self.fc1(x))))
        return self.final_layer_norm(x + self.dropout(y))


class SpeechEncoder(nn.Module):
    """Raw waveform encoder in the style of wav2vec 2.0.

    Args:
        source: (batch, samples) waveforms, zero-padded at the end
        lengths: (batch,) number of samples of each waveform

    Returns:
        features (batch, frames, dim)
    """

    def __init__(self, dim: int = 64, ffn_dim: int = 128, num_heads: int = 4, num_layers: int = 2,
                 conv_layers: Optional[List[Tuple[int, int, int]]] = None, dropout: float = 0.1):
        super().__init__()
        conv_layers = conv_layers or [(32, 10, 5), (32, 3, 2), (32, 2, 2)]
        self.feature_extractor = ConvFeatureExtractor(dim, conv_layers)
        self.layer_norm = nn.LayerNorm(dim)
        self.pos_conv = nn.Conv1d(dim, dim, kernel_size=15, padding=7, groups=4)
        self.layers = nn.ModuleList([EncoderLayer(dim, ffn_dim, num_heads, dropout) for _ in range(num_layers)])

    def forward(self, source: torch.Tensor, lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        x = self.feature_extractor(source)

        padding_mask = None
        if lengths is not None:
            frames = torch.arange(x.size(1), device=x.device)
            padding_mask = frames[None, :] >= lengths[:, None]
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)

        x = x + F.gelu(self.pos_conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.layer_norm(x)
        for layer in self.layers:
            x = layer(x, self_attn_padding_mask=padding_mask)
        return x
