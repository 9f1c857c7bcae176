from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TransformerDecoderLayer(nn.Module):
    """Decoder layer with encoder attention (batch first).

    Args:
        embed_dim (int): width of the decoder.
        num_heads (int): heads of both attentions.
        ffn_dim (int): width of the feed-forward layer.
        encoder_dim (int, optional): width of the encoder output, ``embed_dim`` by default.
        dropout (float): dropout after every sub-layer.
        attention_dropout (float): dropout on attention weights.
        normalize_before (bool): pre-norm instead of post-norm.

    Masks are True where a position is *padding*. Target padding is on the right; every source has at
    least one element that is not padding.

    Returns:
        the output (batch, tgt, embed_dim), and with ``need_attn`` the weights of the encoder attention
        averaged over heads, (batch, tgt, src), else None.
    """

    def __init__(
        self,
        embed_dim: int = 256,
        num_heads: int = 4,
        ffn_dim: int = 1024,
        encoder_dim: Optional[int] = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        normalize_before: bool = False,
    ):
        super().__init__()
        self.normalize_before = normalize_before
        self.self_attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=attention_dropout, batch_first=True)
        self.encoder_attn = nn.MultiheadAttention(
            embed_dim, num_heads, dropout=attention_dropout, kdim=encoder_dim, vdim=encoder_dim, batch_first=True
        )
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.encoder_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
        self.dropout_module = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)

        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, _ = self.self_attn(
            x, x, x, attn_mask=future, key_padding_mask=self_attn_padding_mask, need_weights=False
        )
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.encoder_attn_layer_norm(x)
        x, attn = self.encoder_attn(
            x,
            encoder_out,
            encoder_out,
            key_padding_mask=encoder_padding_mask,
            need_weights=need_attn,
            average_attn_weights=True,
        )
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = self.encoder_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.fc2(F.relu(self.fc1(x)))
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = self.final_layer_norm(x)
        return x, attn
