"""`CopyHead`: the next token is one that the vocabulary offers, or a copy of one that the source has.

Pointer-generator networks, See et al. 2017, arXiv:1704.04368, equations 8 and 9.
Dimension letters: B batch, K source length, Q target length, M model, V vocabulary, N places of the target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headwise.nn.real import as_real


class CopyHead(nn.Module):
    """One more attention to the source, whose weights are probabilities of copying.

        a = softmax(memory · W hidden / √M)
        g = σ(u · [hidden, Σ a memory] + b)
        p(token) = g softmax(logits)[token] + (1 − g) Σ a[k] over the k of which source[k] = token

    See et al. point with the attention that the decoder reads by. This one has a query of its own: what is worth
    reading and what is worth repeating may then be different tokens.
    """

    is_cross_attention = True  # a watch cannot tell from one row of weights

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(2 * dim, 1)

    def forward(self, hidden: Tensor, memory: Tensor, source_real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Where to copy from and whether to.

        Args:
            hidden: [B, Q, M], of the decoder.
            memory: [B, K, M].
            source_real: bool or integers [B, K], True or 1 = a real token, at least one in each row; None = all.

        Returns:
            a [B, Q, K], float32 or better, and the logits of g [B, Q].
        """
        source_real = as_real(source_real, *memory.shape[:2], name="source_real")
        scores_BQK = self.query(hidden) @ memory.mT / math.sqrt(memory.shape[-1])
        if source_real is not None:
            scores_BQK = scores_BQK.masked_fill(~source_real[:, None], -math.inf)
        weights_BQK = scores_BQK.softmax(-1, dtype=torch.promote_types(scores_BQK.dtype, torch.float32))
        read_BQM = weights_BQK.to(memory.dtype) @ memory
        return weights_BQK, self.gate(torch.cat([hidden, read_BQM], -1))[..., 0]


def mixed(logits: Tensor, weights: Tensor, gate: Tensor, source_ids: Tensor) -> Tensor:
    """log p of every token [..., V], float32 or better. Its softmax is p: it serves wherever logits do.

    Args:
        logits: [..., V], of what the vocabulary offers.
        weights, gate: a [..., K] and the logits of g [...], of `CopyHead`.
        source_ids: integers [..., K].
    """
    dtype = weights.dtype
    made, copied = gate.to(dtype)[..., None].sigmoid(), (-gate).to(dtype)[..., None].sigmoid()
    p = (made * logits.to(dtype).softmax(-1)).scatter_add(-1, source_ids.long(), copied * weights)
    return p.clamp_min(torch.finfo(dtype).tiny).log()  # not -inf, whose gradient is none
