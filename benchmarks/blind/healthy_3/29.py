from typing import Optional, Tuple

import torch
import torch.nn as nn


class RelPartialLearnableAttention(nn.Module):
    """Transformer-XL attention: segment memory and relative positions with the two global biases u, v.

    score(i, j) = (q_i + u) . k_j + (q_i + v) . r_(i-j)

    Instead of the padding trick of the original code ("rel_shift") the position scores are computed for
    every distance and picked with ``gather``.
    """

    def __init__(self, d_model: int = 128, n_head: int = 4, mem_len: int = 32, dropout: float = 0.1,
                 dropatt: float = 0.0):
        super().__init__()
        assert d_model % n_head == 0 and d_model % 2 == 0
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.mem_len = mem_len
        self.scale = self.d_head ** -0.5

        self.q_net = nn.Linear(d_model, d_model, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        inv_freq = 1.0 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _sinusoid(self, n: int) -> torch.Tensor:
        """Row t is the encoding of the distance t."""
        angle = torch.outer(torch.arange(n, device=self.inv_freq.device).float(), self.inv_freq.float())
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def forward(
        self, w: torch.Tensor, mems: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            w: (batch, qlen, d_model), the input of this layer for the segment.
            mems: (batch, mlen, d_model), inputs of this layer for earlier segments.

        Returns:
            the output of the layer and the memory to pass with the next segment, without gradient.
        """
        B, Q, _ = w.shape
        mlen = 0 if mems is None else mems.size(1)
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        K = mlen + Q

        q = self.q_net(w).view(B, Q, self.n_head, self.d_head)
        k, v = self.kv_net(cat).view(B, K, 2, self.n_head, self.d_head).unbind(dim=2)
        r = self.r_net(self._sinusoid(K).to(w.dtype)).view(K, self.n_head, self.d_head)

        content = torch.einsum("bqnd,bknd->bnqk", q + self.r_w_bias, k)
        by_distance = torch.einsum("bqnd,tnd->bnqt", q + self.r_r_bias, r)
        i = torch.arange(mlen, K, device=w.device)[:, None]
        j = torch.arange(K, device=w.device)[None, :]
        distance = i - j
        index = distance.clamp(min=0).expand(B, self.n_head, Q, K)
        position = by_distance.gather(-1, index)

        score = (content + position) * self.scale
        score = score.masked_fill(distance < 0, float("-inf"))
        prob = self.dropatt(score.softmax(dim=-1))
        vec = torch.einsum("bnqk,bknd->bqnd", prob, v).reshape(B, Q, -1)

        out = self.layer_norm(w + self.drop(self.o_net(vec)))
        keep = min(self.mem_len, K)
        return out, cat[:, K - keep:].detach()
