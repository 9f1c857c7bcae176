from typing import Optional, Tuple

import torch
from torch import nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class AdaLayerNormZero(nn.Module):
    """Shift / scale for the norm and a gate for the branch, all zero at the start of training."""

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)

    def forward(self, x, emb):
        params = self.linear(F.silu(emb)).unsqueeze(1).chunk(6, dim=-1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = params
        return self.norm(x) * (1 + scale_msa) + shift_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp


class StreamProjections(nn.Module):
    """What one modality owns inside the joint attention."""

    def __init__(self, dim, num_heads, mlp_ratio):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = AdaLayerNormZero(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm_q = RMSNorm(dim // num_heads)
        self.norm_k = RMSNorm(dim // num_heads)
        self.to_out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        hidden = int(dim * mlp_ratio)
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim))

    def project(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.norm_q(q), self.norm_k(k), v

    def finish(self, x, attn, gate_msa, shift_mlp, scale_mlp, gate_mlp):
        x = x + gate_msa * self.to_out(attn)
        h = self.norm2(x) * (1 + scale_mlp) + shift_mlp
        return x + gate_mlp * self.ff(h)


class JointTransformerBlock(nn.Module):
    """MMDiT block of Stable Diffusion 3: two streams with separate weights share one attention.

    Args of ``forward``:
        hidden_states: ``(batch, image_tokens, dim)``
        encoder_hidden_states: ``(batch, text_tokens, dim)``
        temb: ``(batch, dim)`` conditioning vector
        text_mask: ``(batch, text_tokens)`` bool, True for text tokens to attend to. Image tokens are always
            visible, no row is empty.

    Returns ``(encoder_hidden_states, hidden_states)``, text first as in diffusers. A new block is the identity.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, mlp_ratio: float = 4.0):
        super().__init__()
        assert dim % num_heads == 0
        self.image = StreamProjections(dim, num_heads, mlp_ratio)
        self.text = StreamProjections(dim, num_heads, mlp_ratio)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        text_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        b, n_img, _ = hidden_states.shape
        n_txt = encoder_hidden_states.shape[1]
        img, *img_mod = self.image.norm1(hidden_states, temb)
        txt, *txt_mod = self.text.norm1(encoder_hidden_states, temb)

        # image tokens come first in the joint sequence
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(self.image.project(img), self.text.project(txt)))
        mask = None
        if text_mask is not None:
            mask = torch.cat([text_mask.new_ones(b, n_img), text_mask], dim=1).bool()[:, None, None, :]
        attn = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        attn_img, attn_txt = attn.transpose(1, 2).flatten(2).split([n_img, n_txt], dim=1)

        hidden_states = self.image.finish(hidden_states, attn_img, *img_mod)
        encoder_hidden_states = self.text.finish(encoder_hidden_states, attn_txt, *txt_mod)
        return encoder_hidden_states, hidden_states
