import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    """Attention from text to audio. During decoding the projected audio is kept between the steps."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self._audio_kv = None

    def _heads(self, x):
        return x.view(x.size(0), -1, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, audio, audio_mask=None):
        reusable = (
            not self.training
            and self._audio_kv is not None
            and self._audio_kv[0].size(0) == x.size(0)
            and self._audio_kv[0].size(2) == audio.size(1)
        )
        if reusable:
            k, v = self._audio_kv
        else:
            k, v = self._heads(self.key(audio)), self._heads(self.value(audio))
            if not self.training:
                self._audio_kv = (k.detach(), v.detach())
        mask = audio_mask[:, None, None, :] if audio_mask is not None else None
        y = F.scaled_dot_product_attention(self._heads(self.query(x)), k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class SpeechDecoderLayer(nn.Module):
    """Decoder layer of a speech recogniser: causal self-attention, audio attention, MLP (pre-norm).

    Args:
        x: text states ``[B, T, dim]``
        audio: encoder output ``[B, S, dim]``
        audio_mask: bool ``[B, S]``, True for frames inside the utterance
    """

    def __init__(self, dim=64, num_heads=4, ffn_dim=256, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.self_norm = nn.LayerNorm(dim)
        self.self_qkv = nn.Linear(dim, 3 * dim)
        self.self_out = nn.Linear(dim, dim)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, num_heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))
        self.dropout = nn.Dropout(dropout)

    def _self_attention(self, x):
        b, t, d = x.shape
        q, k, v = self.self_qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.self_out(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x, audio, audio_mask=None):
        x = x + self.dropout(self._self_attention(self.self_norm(x)))
        x = x + self.dropout(self.cross_attn(self.cross_norm(x), audio, audio_mask))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
