"""`CopyHead`: the next token is a token of the vocabulary, or a copy of a token of the source.

Pointer-generator networks, See et al. 2017, arXiv:1704.04368, equations 8 and 9.
Dimension letters: B batch, K source length, Q target length, M model, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headwise.nn.real import check_real


class CopyHead(nn.Module):
    """An attention to the source whose weights are probabilities of copying.

        a = softmax(memory · W hidden / √M)
        g = σ(u · [hidden, Σ a memory] + b)
        p(token) = g softmax(logits)[token] + (1 − g) Σ a[k] over the k with source[k] = token

    See et al. take the weights of the decoder's own attention as probabilities of copying. This head has its own query
    W hidden, because the tokens that are worth attending to and the tokens that are worth copying may differ.
    """

    is_cross_attention = True  # `watch` could not tell cross-attention from one row of weights

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(2 * dim, 1)

    def forward(self, hidden: Tensor, memory: Tensor, source_real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the probabilities of copying each source token, and the logit of not copying.

        Not copying means that the token is drawn from the vocabulary.

        Args:
            hidden: [B, Q, M], the states of the decoder.
            memory: [B, K, M], the output of the encoder.
            source_real: bool or integers [B, K], True or 1 = a real token, at least one in each row; None = all.

        Returns:
            a [B, Q, K], float32 or better, and the logits of g [B, Q].
        """
        source_real = check_real(source_real, *memory.shape[:2], name="source_real")
        scores_BQK = self.query(hidden) @ memory.mT / math.sqrt(memory.shape[-1])
        if source_real is not None:
            scores_BQK = scores_BQK.masked_fill(~source_real[:, None], -math.inf)
        weights_BQK = scores_BQK.softmax(-1, dtype=torch.promote_types(scores_BQK.dtype, torch.float32))
        read_BQM = weights_BQK.to(memory.dtype) @ memory
        return weights_BQK, self.gate(torch.cat([hidden, read_BQM], -1))[..., 0]


def mixed(logits: Tensor, weights: Tensor, gate: Tensor, source_ids: Tensor) -> Tensor:
    """Compute log p of every token of the vocabulary, copying included: [..., V], float32 or better.

    Its softmax is p, so it can be used as logits.

    Args:
        logits: [..., V], of the tokens of the vocabulary.
        weights, gate: a [..., K] and the logits of g [...], as `CopyHead` returns them.
        source_ids: integers [..., K], the tokens of the source.
    """
    dtype = weights.dtype
    made, copied = gate.to(dtype)[..., None].sigmoid(), (-gate).to(dtype)[..., None].sigmoid()
    p = (made * logits.to(dtype).softmax(-1)).scatter_add(-1, source_ids.long(), copied * weights)
    return p.clamp_min(torch.finfo(dtype).tiny).log()  # not -inf, which has no gradient
