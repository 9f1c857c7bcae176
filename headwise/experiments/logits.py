"""Direct logit attribution: what each head adds to a logit by itself, through the last norm (Elhage et al. 2021).

    logits = norm(Σ c) W_U + b_U,   c: the embeddings, each head out_h W_O[h], each MLP, the biases

The norm divides by the standard deviation σ of the whole stream. With σ fixed to this run the norm is linear, so that
the logit is exactly the sum of

    DLA(c) = (c - mean c) / σ · g · W_U[:, token]        (without the mean for RMSNorm)

and of a constant, b W_U + b_U. The effect of a part c on later layers and on σ is not included: to measure that, ablate
or patch the part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, DtypeError, ProjectionError, brief
from headwise.experiments.linear import close
from headwise.experiments.norms import Norm, find_norm
from headwise.experiments.observing import Observed, observe
from headwise.experiments.projections import Projections, find
from headwise.experiments.readout import Term, readout
from headwise.experiments.running import Inputs, count_examples
from headwise.experiments.sweeping import strongest
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution(Printed):
    """The parts of a logit, or of a difference of two logits, at one position of each example; they sum to it exactly.

    Attributes:
        layers: the paths of the layers whose heads add to the residual stream, in their order.
        heads: [B, L, H], the part of each head; NaN for heads that a layer does not have.
        others: the name of a module -> its part [B]: of embeddings and MLPs; for a layer, the part of its bias b_O.
        constant: [B], the part that does not depend on the input.
        logit: [B], the logit of the model, or the difference of two logits.
    """

    layers: tuple[str, ...]
    heads: Tensor
    others: Mapping[str, Tensor]
    constant: Tensor
    logit: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of all parts, [B]."""
        return self.heads.nan_to_num(0.0).sum((1, 2)) + sum(self.others.values(), self.constant)

    def strongest(self, count: int = 10) -> list[tuple[float, str, int]]:
        """Return the `count` largest parts in either direction, averaged over examples: (part, layer, head) of each."""
        found = strongest(self.heads.mean(0), self.layers, count, signed=True)
        return [(part, layer, head) for part, layer, head, _ in found]

    def __str__(self) -> str:
        lines = [f"logit: {float(self.logit.mean()):.4g}, of which"]
        lines += [f"{part:+9.4f}  {layer}, head {head}" for part, layer, head in self.strongest()]
        others = sorted(self.others.items(), key=lambda each: -abs(float(each[1].mean())))
        lines += [f"{float(x.mean()):+9.4f}  {name}" for name, x in others if bool(x.any())]
        return "\n".join([*lines, f"{float(self.constant.mean()):+9.4f}  constant"])


def direct_logit_attribution(
    model: nn.Module, inputs: Inputs, token: Tensor | int, against: Tensor | int | None = None, *, position: int = -1
) -> LogitAttribution:
    """Split a logit into the parts that each head, each MLP and the embeddings add to it directly.

    Args:
        model: a language model that `headwise.edit` can edit, in eval mode, which adds the outputs of its layers to one
            residual stream. LayerNorm, RMSNorm or none before W_U; W_U, W_O and the stream are found by trial.
        inputs: the inputs of the model, as for `patching`.
        token: the id of the token whose logit is split: one for all examples, or [B].
        against: the id of a second token, whose logit is subtracted, such as the wrong name in the IOI task.
        position: the position whose logits are split; negative numbers count from the end.

    Raises:
        ProjectionError: it was not found how the model computes its logits: the logits are capped, the stream is
            normalised after each layer (BERT), or the additions that make the stream were not observed; or a layer runs
            several times in one pass.
        ArgumentError: a position or a token that does not exist.
        DtypeError: a token that is a text.
    """
    observed = observe(model, inputs)
    several = [site for site, computed in observed.calls.items() if computed.runs > 1]
    if several:
        raise ProjectionError(
            f"direct_logit_attribution: {several[0]} runs several times in one pass, and the parts of its runs are not "
            "told apart"
        )
    found = {site: find(observed, computed, "o") for site, computed in observed.calls.items()}
    adding = _Adding(observed, found.values())
    read = readout(observed, lambda x: adding.site(x) is not None)
    batch, length, vocabulary = read.logits.shape
    if not -length <= position < length:
        raise ArgumentError(f"position must be in {-length} … {length - 1}. Received: position={position}")
    ids = _ids(token, count_examples(inputs), vocabulary, "token")
    direction, constant = read.unembedding.mT[ids], read.constant[ids]
    rows = torch.arange(batch)
    logit = read.logits[rows, position, ids]
    if against is not None:
        other = _ids(against, batch, vocabulary, "against")
        direction, constant = direction - read.unembedding.mT[other], constant - read.constant[other]
        logit = logit - read.logits[rows, position, other]

    def part(x: Tensor) -> Tensor:  # [B, N, M] -> [B]
        return (read.direct(x)[:, position] * direction).sum(-1)

    of_terms = [adding.site(term.x) for term in read.terms]
    sites = [site for site in found if site in of_terms]
    if not sites:
        raise ProjectionError(
            "direct_logit_attribution: expected heads that add to the residual stream which the logits are read from. "
            f"Received: a stream of {[term.name for term in read.terms]}. Is it normalised after each layer?"
        )
    heads = torch.full(
        (batch, len(sites), max(found[site].heads for site in sites)),
        torch.nan,
        dtype=torch.float64,
        device=logit.device,
    )
    others: dict[str, Tensor] = {}
    for term, site in zip(read.terms, of_terms, strict=True):
        if site is None:
            others[term.name] = others.get(term.name, 0.0) + part(term.value)
        else:
            each = adding.heads(term, found[site])
            heads[:, sites.index(site), : len(each)] = torch.stack([part(x) for x in each], 1)
            others[site] = part(term.value - sum(each))
    result = LogitAttribution(tuple(sites), heads, others, constant, logit)
    if not close(result.total, logit, read.logits, read.dtype):
        raise ProjectionError(
            f"direct_logit_attribution: the parts sum to {result.total.tolist()}, and the logit is {logit.tolist()}. "
            "The model adds something to its stream that was not seen"
        )
    return result


class _Adding:
    """Finds the terms of the residual stream that are outputs of heads, added directly or after a norm (Gemma 2)."""

    def __init__(self, observed: Observed, layers: Iterable[Projections]) -> None:
        self._observed = observed
        self._sites = {id(p.added): p.site for p in layers if p.added is not None}
        self._norms: dict[int, Norm | None] = {}

    def site(self, x: Tensor) -> str | None:
        """Return the path of the layer whose heads made this tensor; None if heads did not make it."""
        if id(x) in self._sites:
            return self._sites[id(x)]
        norm = self._norm(x)
        return None if norm is None else self._sites.get(id(norm.x))

    def heads(self, term: Term, p: Projections) -> list[Tensor]:
        """Compute the vectors [B, N, M] that each head adds to the residual stream: a list, one for each head."""
        out = self._observed.calls[p.site].out.double()
        each = [term.factor * (out[:, h] @ weight) for h, weight in enumerate(p.weight("o"))]
        norm = None if term.x is p.added else self._norm(term.x)
        return each if norm is None else [norm.apply(x) for x in each]

    def _norm(self, x: Tensor) -> Norm | None:
        if id(x) not in self._norms:
            self._norms[id(x)] = find_norm(self._observed, x)
        return self._norms[id(x)]


def _ids(token: Tensor | int, batch: int, vocabulary: int, name: str) -> Tensor:
    if isinstance(token, str):
        raise DtypeError(
            f"{name} must be an id. Received: {name}={token!r}. Pass what your tokenizer has for it, such as "
            f"tokenizer.convert_tokens_to_ids({token!r})"
        )
    ids = torch.as_tensor(token).expand(batch) if torch.as_tensor(token).ndim == 0 else torch.as_tensor(token)
    if ids.shape != (batch,) or bool(((ids < 0) | (ids >= vocabulary)).any()):
        raise ArgumentError(
            f"{name} must be an id below {vocabulary}, or one for each of {batch} examples. Received: {brief(token)}"
        )
    return ids.long()
