from typing import Dict, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

Cache = Dict[str, torch.Tensor]


class WhisperAttention(nn.Module):
    """One attention of a speech decoder. As in Whisper the key projection has no bias."""

    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        assert n_state % n_head == 0
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def keys_values(self, x: torch.Tensor):
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(self, x, k, v, mask=None):
        q = self.split(self.query(x))
        # the scale d ** -0.5 is shared between q and k: less overflow in half precision
        root = q.size(-1) ** -0.25
        scores = (q * root) @ (k * root).transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        w = F.softmax(scores.float(), dim=-1).to(v.dtype)
        return self.out((w @ v).transpose(1, 2).flatten(2))


class SpeechDecoderBlock(nn.Module):
    """Pre-norm decoder block: causal self-attention, attention to the audio, MLP.

    With ``cache`` (a dict that starts empty and is filled by the block) the text can be fed in pieces.
    The keys of the audio are computed at the first call only; start a new dict for a new recording.

    Args:
        n_state: width of text and audio states.
        n_head: heads of both attentions.
    """

    def __init__(self, n_state: int = 192, n_head: int = 6):
        super().__init__()
        self.attn_ln = nn.LayerNorm(n_state)
        self.attn = WhisperAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = WhisperAttention(n_state, n_head)
        self.mlp_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))

    def forward(
        self,
        x: torch.Tensor,
        audio: torch.Tensor,
        audio_lengths: Optional[torch.Tensor] = None,
        cache: Optional[Cache] = None,
    ) -> torch.Tensor:
        """
        x: (B, T, n_state) new text states; audio: (B, S, n_state) output of the audio encoder.
        audio_lengths: (B,) valid audio frames, at least 1; all frames when not given.
        """
        T = x.size(1)

        h = self.attn_ln(x)
        k, v = self.attn.keys_values(h)
        if cache is not None:
            if "k" in cache:
                k = torch.cat([cache["k"], k], dim=2)
                v = torch.cat([cache["v"], v], dim=2)
            cache["k"], cache["v"] = k, v
        total = k.size(2)
        # bottom right aligned: the last of the new tokens sees everything
        causal = torch.ones(T, total, dtype=torch.bool, device=x.device).tril(diagonal=total - T)
        x = x + self.attn(h, k, v, causal)

        if cache is not None and "audio_k" in cache:
            k, v = cache["audio_k"], cache["audio_v"]
        else:
            k, v = self.cross_attn.keys_values(audio)
            if cache is not None:
                cache["audio_k"], cache["audio_v"] = k, v
        audio_mask = None
        if audio_lengths is not None:
            frames = torch.arange(k.size(2), device=x.device)
            audio_mask = (frames[None, :] < audio_lengths[:, None])[:, None, None, :]
        x = x + self.cross_attn(self.cross_attn_ln(x), k, v, audio_mask)
        return x + self.mlp(self.mlp_ln(x))
