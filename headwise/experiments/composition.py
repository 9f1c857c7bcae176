"""Computes how much each head reads the output of each earlier head: Q-, K- and V-composition (Elhage et al. 2021).

    Q: |W_OV¹ W_QK²| / (|W_OV¹| |W_QK²|),   K: |W_OV¹ W_QK²ᵀ| / (…),   V: |W_OV¹ W_OV²| / (|W_OV¹| |W_OV²|)

with W_OV = W_V W_O and W_QK = W_Q W_Kᵀ of the earlier head 1 and the later head 2, and the Frobenius norm.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.experiments.circuits import find_layers
from headwise.experiments.observing import observe
from headwise.experiments.projections import Projections
from headwise.experiments.running import Inputs
from headwise.experiments.sweeping import largest
from headwise.records.names import Choice
from headwise.tables import Printed

Kind = Literal["q", "k", "v"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Composition(Printed):
    """How much each head reads the output of each earlier head: the result of `composition`.

    Attributes:
        layers: the paths of the layers.
        scores: [L, H, L, H]: indices (layer, head) of the earlier head, then of the later head. NaN where the second
            head is not in a later layer than the first, there is no such head, or the second head has its keys and
            values from another sequence (cross-attention, for kinds "k" and "v").
        baseline: the mean score of random matrices of these shapes, to compare scores with.
    """

    layers: tuple[str, ...]
    scores: Tensor
    baseline: float
    kind: Kind

    def strongest(self, count: int = 10) -> list[tuple[float, tuple[str, int], tuple[str, int]]]:
        """Return the `count` largest scores: (score, earlier head, later head), each head as (layer, head)."""
        found = []
        for score, (one, head, two, other) in largest(self.scores, count):
            found.append((score, (self.layers[one], head), (self.layers[two], other)))
        return found

    def __str__(self) -> str:
        lines = [f"{self.kind.upper()}-composition (random weights: {self.baseline:.3f})"]
        for score, (one, head), (two, other) in self.strongest():
            lines.append(f"{score:7.3f}  {one}, head {head} -> {two}, head {other}")
        return "\n".join(lines)


def composition(
    model: nn.Module, inputs: Inputs, kind: Kind = "k", *, where: Choice = "*", folded: bool = True
) -> Composition:
    """Compute from the weights how much the queries, keys or values of each head depend on each earlier head's output.

    Args:
        model, inputs, where: as for `projections`. The layers must belong to one residual stream: of an
            encoder-decoder choose one side, where="decoder".
        kind: "q", "k" or "v". An induction head composes by its keys with a previous-token head.
        folded: multiply the gains of the norms before W_Q, W_K and W_V into these weights.

    Positions (RoPE) are ignored: the weights are those before the rotation. MLPs between the two heads are ignored too.

    Raises:
        ArgumentError: an unknown kind.
        ProjectionError: weights that were not found, as when q and k are normalised.
    """
    if kind not in ("q", "k", "v"):
        raise ArgumentError(f'composition: kind must be "q", "k" or "v". Received: kind={kind!r}')
    layers = find_layers(observe(model, inputs, where))
    most = max(p.heads for p in layers)
    scores = torch.full((len(layers), most, len(layers), most), torch.nan, dtype=torch.float64)
    readers = [_reader(p, kind, folded) for p in layers]
    writers = [_writer(p.weight("v", folded=folded), p.weight("o")) for p in layers]
    for i, one in enumerate(writers):
        for j in range(i + 1, len(layers)):
            if kind != "q" and layers[j].kind == "cross":
                continue  # its keys and values come from the other sequence
            found = _composed(one, readers[j])
            scores[i, : found.shape[0], j, : found.shape[1]] = found
    return Composition(tuple(p.site for p in layers), scores, _baseline(layers[0], kind), kind)


# The scores need only Frobenius norms. With the QR decomposition A = Q R, |A B| = |Q R B| = |R B|, and R B is smaller.
# Likewise, with Dᵀ = Q R, |C D| = |C Rᵀ Qᵀ| = |C Rᵀ|.


def _writer(a: Tensor, b: Tensor) -> Tensor:
    """Compute R B [H, E, M], which has the same norms as A B, for A = Q R [H, M, E] and B [H, E, M]."""
    return torch.linalg.qr(a, mode="r").R @ b


def _reader(p: Projections, kind: Kind, folded: bool) -> Tensor:
    """Compute C Rᵀ [H, M, D], which has the same norms as the later head's product C D; C reads the residual stream."""
    read = p.weight(kind, folded=folded)
    other = p.weight("o") if kind == "v" else p.weight("k" if kind == "q" else "q", folded=folded).mT
    return _reading(read, other)


def _reading(c: Tensor, d: Tensor) -> Tensor:
    return c @ torch.linalg.qr(d.mT, mode="r").R.mT


def _composed(one: Tensor, two: Tensor) -> Tensor:
    """Score how much a head that reads uses what a head before it writes, [H, G] (Frobenius norms, from 0 to 1).

    `one` [H, E, M] and `two` [G, M, D]: what `_writer` and `_reader` return. |one two| / (|one| |two|) for each pair.
    """
    product = one.flatten(0, 1) @ two.movedim(1, 0).flatten(1)  # [H · E, G · D]
    lengths = product.unflatten(0, one.shape[:2]).unflatten(2, two.shape[::2]).square().sum((1, 3)).sqrt()
    return lengths / (one.norm(dim=(1, 2))[:, None] * two.norm(dim=(1, 2))).clamp(min=1e-30)


def _baseline(p: Projections, kind: Kind) -> float:
    """Compute the mean score of 20 pairs of random matrices, which have the shapes of the layer's matrices."""
    generator = torch.Generator().manual_seed(0)

    def drawn(x: Tensor) -> Tensor:
        return torch.randn(20, *x.shape[1:], generator=generator, dtype=torch.float64)

    v, o, read = p.weight("v"), p.weight("o"), p.weight(kind)
    other = drawn(o) if kind == "v" else drawn(read).mT
    return float(_composed(_writer(drawn(v), drawn(o)), _reading(drawn(read), other)).diagonal().mean())
