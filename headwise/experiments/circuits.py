"""Computes the eigenvalues of the QK and OV circuits of each head, from its weights alone (Elhage et al. 2021).

    W_OV = W_V W_O      what a token that is attended to adds to the residual stream
    W_QK = W_Q W_Kᵀ     which tokens attend to which tokens
    over tokens:        W_E W_OV W_U   [V, V],    W_E W_QK W_Eᵀ   [V, V]     with embedding W_E, unembedding W_U

The two matrices [V, V] have at most rank E and rank D. Their eigenvalues are computed from matrices [E, E] and [D, D],
since AB and BA have the same non-zero eigenvalues.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from headwise.errors import ProjectionError
from headwise.experiments.observing import Observed, observe
from headwise.experiments.projections import Projections, find
from headwise.experiments.readout import embedding, readout
from headwise.experiments.running import Inputs
from headwise.experiments.sweeping import strongest
from headwise.records.names import Choice
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Circuits(Printed):
    """The eigenvalues of each head's circuits over tokens. NaN for heads that a layer does not have.

    Attributes:
        layers: the paths of the layers.
        ov: complex [L, H, E], the eigenvalues of W_E W_OV W_U.
        qk: complex [L, H, D], the eigenvalues of W_E W_QK W_Eᵀ, before rotary positions; None if the model normalises q
            and k.
        copying: [L, H], Σ Re λ / Σ |λ| of `ov`: 1 = an attended token becomes likelier, -1 = less likely.
        matching: [L, H], the same for `qk`: 1 = tokens attend to tokens of their own kind; None with `qk`.
    """

    layers: tuple[str, ...]
    ov: Tensor
    qk: Tensor | None

    @property
    def copying(self) -> Tensor:
        return _share(self.ov)

    @property
    def matching(self) -> Tensor | None:
        return None if self.qk is None else _share(self.qk)

    def __str__(self) -> str:
        lines = []
        for name, scores in (("copying", self.copying), ("matching", self.matching)):
            if scores is not None:
                lines.append(f"{name} (1 = all eigenvalues are positive)")
                lines += [f"{x:7.3f}  {layer}, head {head}" for x, layer, head, _ in strongest(scores, self.layers, 5)]
        return "\n".join(lines)


def circuits(model: nn.Module, inputs: Inputs, *, where: Choice = "*", folded: bool = True) -> Circuits:
    """Compute the eigenvalues of the OV and QK circuits of each head, and from them how much the head copies.

    Args:
        model, inputs, where: as for `projections`; a language model, whose embeddings and W_U are found by trial too.
        folded: multiply the gains of norms into the W_Q, W_K, W_V and W_U that read them, as TransformerLens folds
            them.

    Copying is the score of Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", for which induction
    heads are near 1. MLPs, other heads and positions are ignored.

    Raises ProjectionError for weights that were not found.
    """
    observed = observe(model, inputs, where)
    found = [find(observed, computed) for computed in observed.calls.values()]
    read = readout(observed)
    unembed = read.folded if folded else read.unembedding
    embed = embedding(observed, read.logits.shape[-1])
    through = unembed @ embed  # [M, M]: the factors that all heads share are multiplied once
    ov = [p.weight("o") @ through @ p.weight("v", folded=folded) for p in found]
    qk = None
    if not any("q" in p.problems or "k" in p.problems for p in found):
        through = embed.mT @ embed
        qk = [p.weight("k", folded=folded).mT @ through @ p.weight("q", folded=folded) for p in found]
    return Circuits(tuple(p.site for p in found), _eigenvalues(ov), None if qk is None else _eigenvalues(qk))


def find_layers(observed: Observed) -> list[Projections]:
    """Find the projections of all layers, in order. Raises ProjectionError unless all layers have one width M."""
    found = [find(observed, computed) for computed in observed.calls.values()]
    widths = {p.weight("o").shape[2] for p in found} | {p.weight("v").shape[1] for p in found}
    if len(widths) > 1:
        raise ProjectionError(f"expected layers of one width M. Received: {sorted(widths)}")
    return found


def _eigenvalues(matrices: list[Tensor]) -> Tensor:
    """Compute the eigenvalues [L, H, E] of L tensors [H, E, E], one for each layer; NaN where a layer has fewer."""
    sizes = max(len(x) for x in matrices), max(x.shape[1] for x in matrices)
    found = torch.full((len(matrices), *sizes), torch.nan, dtype=torch.complex128)
    for layer, x in enumerate(matrices):
        found[layer, : len(x), : x.shape[1]] = torch.linalg.eigvals(x)
    return found


def _share(eigenvalues: Tensor) -> Tensor:
    """Compute Σ Re λ / Σ |λ| of each head: 1 if all eigenvalues are positive. 0 for a head whose weights are 0."""
    here = ~eigenvalues.real.isnan()
    real = torch.where(here, eigenvalues.real, 0.0).sum(-1)
    whole = torch.where(here, eigenvalues.abs(), 0.0).sum(-1)
    share = torch.where(whole > 1e-12, real / whole.clamp(min=1e-12), 0.0)
    return torch.where(here.any(-1), share, torch.nan)
