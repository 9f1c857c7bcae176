"""Finds the projections of each head, W_Q, W_K, W_V and W_O, in any model, by trial.

    q = x W_Q + b_Q,   k = x' W_K + b_K,   v = x' W_V + b_V,   Σ_h out_h W_O[h] = the vector that is added to the
    residual stream

The model runs once. Every matrix of the attention module, then of the modules around it, is multiplied by the input of
its module. If columns of the product equal the q, k or v of that run, the weights are found. No names of parameters are
read, so it does not matter whether weights are separate, fused, shared by heads (GQA) or plain parameters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from headwise.errors import ArgumentError, ProjectionError
from headwise.experiments.linear import Fit, fit, maps
from headwise.experiments.norms import Norm, find_norm
from headwise.experiments.observing import Computed, Event, Observed, observe
from headwise.experiments.outward import output_projection
from headwise.experiments.rotations import fit_rotated
from headwise.experiments.running import Inputs
from headwise.records.names import Choice

# The smallest number of tokens: with fewer, columns could be equal by chance.
FEWEST = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Projections:
    """The projections of one layer, with H query heads, G key heads, and M the width of the model.

    Attributes:
        site: the path of the layer.
        kind: whether its keys come from its own sequence ("self") or from another one ("cross").
        heads: H, the number of query heads.
        weights: "q" -> W_Q [H, M, D], "k" -> W_K [G, M, D], "v" -> W_V [G, M, E], "o" -> W_O [H, E, M]; only weights
            that were found; for q and k, before rotary positions.
        biases: "q" -> [H, D], "k" -> [G, D], "v" -> [G, E], "o" -> [M]; 0 where there is no bias.
        scale: the factor on q kᵀ in the scores, if q and k are computed from these weights.
        rotated: how many of the D numbers of q and k are rotated to their positions (RoPE); 0 = none.
        sources: "q", "k", "v", "o" -> the name of the parameter, such as "c_attn.weight".
        problems: "q", "k", "v", "o" -> why the weight was not found.
        norms: "q", "k", "v" -> the normalisation whose output x is multiplied by the weight; None without one.
        added: the output of the module with W_O.
    """

    site: str
    kind: Literal["self", "cross"]
    heads: int
    weights: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    scale: float
    rotated: int
    sources: Mapping[str, str]
    problems: Mapping[str, str]
    norms: Mapping[str, Norm | None]
    added: Tensor | None

    def weight(self, role: str, *, folded: bool = False) -> Tensor:
        """Return W_Q, W_K, W_V or W_O ("q", "k", "v", "o") of each query head, float64: [H, M, D] or [H, E, M].

        `folded`: multiply the weight by the gain of the normalisation before it, and centre it if the normalisation
        subtracts the mean, like `fold_ln` of TransformerLens. Raises ProjectionError if the weight was not found.
        """
        if role not in self.weights:
            raise ProjectionError(f"{self.site}: W_{role.upper()} was not found: {self.problems[role]}")
        found = self.weights[role].double()
        found = found.repeat_interleave(self.heads // len(found), 0)
        norm = self.norms.get(role) if folded else None
        return found if norm is None else norm.folded(found)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [self.site]
        for role in "qkvo":
            about = f"not found: {self.problems.get(role)}"
            if role in self.weights:
                shape = list(self.weights[role].shape)
                turned = f", {self.rotated} of {shape[2]} rotated" if self.rotated and role in "qk" else ""
                about = f"{shape} of {self.sources[role]}{turned}"
            lines.append(f"  W_{role.upper()}  {about}")
        return "\n".join(lines)


def projections(model: nn.Module, inputs: Inputs, *, where: Choice = "*") -> dict[str, Projections]:
    """Find the projections W_Q, W_K, W_V and W_O of each layer: path of the layer -> its `Projections`.

    Args:
        model: any module that `headwise.edit` can edit, in eval mode.
        inputs: the inputs of the model, as for `patching`, with at least 8 tokens; more tokens are better.
        where: the layers, as for every edit.

    Weights that are not found have a reason in `problems`: q and k are normalised after their projection, weights are
    not parameters (quantised, adapters), outputs are gated before W_O.

    Raises ArgumentError for too few tokens.
    """
    observed = observe(model, inputs, where)
    return {site: find(observed, computed) for site, computed in observed.calls.items()}


def find(observed: Observed, computed: Computed, roles: str = "qkvo") -> Projections:
    """Find the projections of one layer in a recorded run; only the weights of `roles` ("q", "k", "v", "o")."""
    call = computed.call
    fits: dict[str, Fit] = {}
    problems: dict[str, str] = {}
    for role, target in (("q", call.q), ("k", call.k), ("v", call.v)):
        if role not in roles:
            problems[role] = "it was not looked for"
            continue
        found = _located(observed, computed.site, target, role != "v")
        if found is None:
            changed = ", nor their rotation: they may be normalised or changed after it" if role != "v" else ""
            problems[role] = f"no parameter times what its module was given is the {role} of this run{changed}"
        else:
            fits[role] = found
    if "v" in fits:  # a factor of q or k becomes the scale of the scores; a factor of v becomes part of W_V
        v = fits["v"]
        fits["v"] = dataclasses.replace(v, weight=v.factor * v.weight, bias=v.factor * v.bias, factor=1.0)
    weights = {role: each.weight for role, each in fits.items()}
    biases = {role: each.bias for role, each in fits.items()}
    sources = {role: each.source.name for role, each in fits.items()}
    merged, added = output_projection(observed, computed), None
    if merged is None:
        problems["o"] = (
            "no parameter times the output of the heads is what a module gave: it may be gated or normalised before"
        )
    else:
        weights["o"], biases["o"], added, sources["o"] = merged
    turning = [each for role, each in fits.items() if role != "v"]
    return Projections(
        computed.site,
        computed.kind,
        computed.out.shape[1],
        weights,
        biases,
        scale=call.scale * math.prod(each.factor for each in turning),
        rotated=max((each.rotated for each in turning), default=0),
        sources=sources,
        problems=problems,
        norms={role: find_norm(observed, each.source.x) for role, each in fits.items()},
        added=added,
    )


def _located(observed: Observed, site: str, target: Tensor, may_turn: bool) -> Fit | None:
    """Find the weights that gave `target` (q, k or v, [B, H, N, D]). `may_turn`: it may be rotated (RoPE)."""
    batch, count = target.shape[0], target.shape[0] * target.shape[2]
    if count < FEWEST:
        raise ArgumentError(f"projections: expected at least {FEWEST} tokens at {site}. Received: {count}")
    vectors = target.transpose(1, 2).flatten(0, 1)  # [n, H, D]
    around: list[Event] = []
    for events in observed.around(site):
        around += events
        scaled = None  # one matrix may give v, another a multiple of v as its q: so a fit with factor 1 is preferred
        for event in events:
            called = [e for e in around if e.inputs and (not e.name or event.name.startswith(f"{e.name}."))]
            for source in maps(event, called, count, batch):
                found = fit(vectors, source) or (fit_rotated(vectors, source) if may_turn else None)
                if found is not None and found.factor == 1:
                    return found
                scaled = scaled or found
        if scaled is not None:
            return scaled
    return None
