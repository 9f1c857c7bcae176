from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        # a key bias shifts all scores of a row alike, softmax would not notice
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(
        self,
        x: Tensor,
        xa: Optional[Tensor] = None,
        causal: bool = False,
        kv_cache: Optional[Dict[nn.Module, Tensor]] = None,
    ):
        q = self.query(x)
        if xa is None:
            k, v = self.key(x), self.value(x)
            if kv_cache is not None:
                if self.key in kv_cache:
                    k = torch.cat([kv_cache[self.key], k], dim=1)
                    v = torch.cat([kv_cache[self.value], v], dim=1)
                kv_cache[self.key], kv_cache[self.value] = k, v
        elif kv_cache is not None and self.key in kv_cache:
            # the audio does not change while its text is decoded
            k, v = kv_cache[self.key], kv_cache[self.value]
        else:
            k, v = self.key(xa), self.value(xa)
            if kv_cache is not None:
                kv_cache[self.key], kv_cache[self.value] = k, v
        return self.out(self.qkv_attention(q, k, v, causal))

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        n_batch, n_ctx, n_state = q.shape
        # half of the 1 / sqrt(d) goes to either side, which is gentler in half precision
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)

        qk = (q @ k).float()
        if causal:
            n_keys = k.shape[-1]
            offset = n_keys - n_ctx
            future = torch.ones(n_ctx, n_keys, dtype=torch.bool, device=q.device).triu(1 + offset)
            qk = qk.masked_fill(future, float("-inf"))
        w = F.softmax(qk, dim=-1).to(v.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2)


class ResidualAttentionBlock(nn.Module):
    """Whisper layer.

    With ``cross_attention=False`` (audio encoder) the self-attention is bidirectional, with
    ``cross_attention=True`` (text decoder) it is causal and followed by attention to the audio ``xa``.

    ``kv_cache`` is a dict kept by the caller for the decoding of one utterance: text keys and values grow by
    the new tokens of each call, those of the audio are computed in the first call.
    """

    def __init__(self, n_state: int = 128, n_head: int = 4, cross_attention: bool = True):
        super().__init__()
        assert n_state % n_head == 0
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head) if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(n_state) if cross_attention else None
        n_mlp = n_state * 4
        self.mlp = nn.Sequential(nn.Linear(n_state, n_mlp), nn.GELU(), nn.Linear(n_mlp, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(
        self,
        x: Tensor,
        xa: Optional[Tensor] = None,
        kv_cache: Optional[Dict[nn.Module, Tensor]] = None,
    ) -> Tensor:
        """x: (batch, tokens, n_state), xa: (batch, frames, n_state)."""
        causal = self.cross_attn is not None
        x = x + self.attn(self.attn_ln(x), causal=causal, kv_cache=kv_cache if causal else None)
        if self.cross_attn is not None:
            if xa is None:
                raise ValueError("a decoder block needs the audio features")
            x = x + self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=kv_cache)
        x = x + self.mlp(self.mlp_ln(x))
        return x
