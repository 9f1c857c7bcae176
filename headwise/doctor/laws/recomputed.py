"""Attention computed from a layer's own weights, by the definition and with one mistake: which is its output?

This is for layers whose operations torch does not see, of Keras on TensorFlow and JAX. Their projections are read by
their names: kernels [in, H·D], [in, H, D] or, of all three in one, [in, 3·H·D]; and [H·D, out] or [H, D, out].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.finding import Finding, NotApplicable, NotChecked
from headwise.doctor.reading.projection_names import read_name
from headwise.doctor.subject import foreign_backend

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs, Interface, MaskInput
    from headwise.doctor.patient import Patient
    from headwise.doctor.subject import Subject

_LENGTH = 7  # of the inputs: unlikely to equal a width or a number of heads
_SAME = 1e-4  # relative error of the same computation in float32
_FAR = 100  # times as far as the mistake: the definition, if it is a mistake
_NAMES = {"q": "queries", "k": "keys", "v": "values"}
_FIX = "do this as the definition of attention does; the evidence says what the module does instead"


class Mistake(NamedTuple):
    """A computation that differs from the definition in one decision."""

    name: str  # of the finding
    sentence: str  # with places for the sizes
    changes: Mapping[str, Any]  # of the arguments of Layer.compute


_SCALES = {
    "none": "the scores are not divided at all; the head width is {head_width}, expected {root_head_width:.3f}",
    "sqrt(width)": "the scores are divided by {root_width:.3f} = sqrt({width}), the model width; the head width is "
    "{head_width}, expected {root_head_width:.3f}",
    "head width": "the scores are divided by {head_width:.3f}, the head width (or twice by its square root); the head "
    "width is {head_width}, expected {root_head_width:.3f}",
    "times sqrt(head width)": "the scores are multiplied by {root_head_width:.3f} = sqrt({head_width}), where they "
    "should be divided by it",
}
_AXIS = ", so that the weights of a query do not sum to 1; it should be taken over the keys"
_SUMMED = "the weights are transposed: the values are summed over the queries, not over the keys"
_MISTAKES = (
    *(Mistake("wrong-scale", sentence, {"scale": scale}) for scale, sentence in _SCALES.items()),
    Mistake("softmax-axis", f"the softmax is taken over the queries{_AXIS}", {"axis": -2}),
    Mistake("softmax-axis", f"the softmax is taken over the heads{_AXIS}", {"axis": 1}),
    Mistake(
        "head-split",
        "[B, N, H·D] is viewed as [B, H, N, D] without a transpose, so that every head mixes positions",
        {"split": False},
    ),
    Mistake(
        "head-merge",
        "[B, H, N, D] is viewed as [B, N, H·D] without a transpose, so that positions and heads are mixed",
        {"merge": False},
    ),
    Mistake("weights-transposed", _SUMMED, {"transposed": True}),
    *(
        Mistake(
            "projection-reused",
            f"{_NAMES[role]} are computed by the projection of the {_NAMES[used]}",
            {"projections": "qkv".replace(role, used)},
        )
        for role, used in ("vk", "vq", "kq", "kv", "qk", "qv")
    ),
)
_MASK_MISTAKES = (
    Mistake("mask-ignored", "the mask has no effect", {"mask": "ignored"}),
    Mistake("mask-polarity", "the mask is used with the opposite polarity", {"mask": "inverted"}),
    Mistake("mask-broadcast", "the mask hides queries instead of keys", {"mask": "queries"}),
    Mistake("mask-multiplied", "forbidden scores are multiplied by 0 instead of set to -inf: they keep a weight",
            {"mask": "zero"}),
    Mistake("mask-after-softmax", "the mask is applied to the weights after the softmax, so that they do not sum to 1",
            {"mask": "weights"}),
)  # fmt: skip
FINDINGS = tuple({each.name: None for each in (*_MISTAKES, *_MASK_MISTAKES)})


class Match(NamedTuple):
    """The computation that gives an output."""

    layer: Layer
    right: Mapping[str, Any]  # the definition, as arguments of Layer.compute
    mistake: Mistake | None  # None: it is the definition
    error: float  # the largest difference, relative to the largest output
    healthy_error: float  # the same for the definition

    @property
    def told(self) -> str:
        """The sentence of the mistake, with both errors."""
        assert self.mistake is not None
        return (
            f"{self.mistake.sentence.format(**self.layer.numbers)}; computed this way from its own weights, the output "
            f"matches to {self.error:.0e}, and by the definition to {self.healthy_error:.0e}"
        )


def check(patient: Patient) -> Iterator[Finding]:
    if not foreign_backend(patient.module):
        raise NotApplicable("its operations are seen")
    match, masks = recompute(patient)
    for parameter, each in {"": match, **masks}.items():
        if each.mistake is not None:
            told = f"`{parameter}`: {each.told}" if parameter else each.told
            numbers = {"error": each.error, "healthy_error": each.healthy_error}
            yield Finding(each.mistake.name, "bug", told, _FIX, patient.where, numbers=numbers)


@torch.no_grad()
def recompute(subject: Subject) -> tuple[Match, dict[str, Match]]:
    """Find the computation that gives a layer's output without a mask, and for each mask the one that gives it with it.

    Raises:
        NotApplicable: its weights are not those of one attention layer.
        NotChecked: it cannot be called so, or no computation here gives its output.
    """
    interface = subject.interface.on(at_rest(subject.interface.module))
    length = interface.length or _LENGTH
    inputs = interface.inputs(3, length, length)
    output = _run(interface, inputs)
    layers = [(layer, {"causal": causal}) for layer in _read_layers(interface) for causal in (False, True)]
    match = _best(_match(layer, inputs, output, right, _MISTAKES, None) for layer, right in layers)
    if match is None:
        raise NotChecked("neither the definition nor a known mistake gives its output")
    used = {mask.what: mask for mask in reversed(interface.masks) if not mask.own}
    found = {mask.parameter: _match_mask(match, interface, inputs, mask) for mask in used.values()}
    return match, {name: each for name, each in found.items() if each is not None}


def _match_mask(match: Match, interface: Interface, inputs: Inputs, mask: MaskInput) -> Match | None:
    """What the layer does with a mask, if it computes all else as in `match`; None if that is not known."""
    plain = {**match.right, **(match.mistake.changes if match.mistake else {})}
    batch, queries, keys = *inputs.query.shape[:2], inputs.key_length
    if mask.what == "keys":
        allowed = torch.arange(keys) < torch.tensor([keys - 1, keys - 3, keys - 2])[:, None]
        output, allowed = _run(interface, inputs, padding=allowed), allowed[:, None, None]
    else:
        cells = (torch.arange(queries)[:, None] * 3 + torch.arange(keys) * 2) % 7 < 4
        cells |= torch.arange(queries)[:, None] == torch.arange(keys)
        output, allowed = _run(interface, inputs, allowed=cells), cells.expand(batch, 1, queries, keys)
    right = [{**plain, "causal": causal} for causal in {plain["causal"], False}]
    if mask.claimed is None and not mask.works:  # either polarity is right
        right.append({**plain, "mask": "inverted"})
    return _best(_match(match.layer, inputs, output, each, _MASK_MISTAKES, allowed) for each in right)


def _best(found: Iterator[Match | None]) -> Match | None:
    return min(filter(None, found), key=lambda each: (each.mistake is not None, each.error), default=None)


def _run(interface: Interface, inputs: Inputs, **given: Tensor) -> Tensor:
    try:  # the user's code may raise anything
        return interface.run(inputs.each(torch.clone), **given).output.double()  # type: ignore[arg-type]
    except Exception as error:
        raise NotChecked(f"a call raises {type(error).__name__}") from error


def _match(
    layer: Layer,
    inputs: Inputs,
    output: Tensor,
    right: Mapping[str, Any],
    mistakes: Sequence[Mistake],
    allowed: Tensor | None,
) -> Match | None:
    """The definition, if it gives the output; else the mistake that gives it, if the definition is far from it."""

    def error(how: Mapping[str, Any]) -> float:
        found = layer.compute(inputs, allowed, **how)
        if found.shape != output.shape:
            return float("inf")
        return float((found - output).abs().max() / output.abs().max().clamp(min=1e-30))

    healthy = error(right)
    if healthy < _SAME:
        return Match(layer, right, None, healthy, healthy)
    least, mistake = min(((error({**right, **x.changes}), x) for x in mistakes), key=lambda each: each[0])
    return Match(layer, right, mistake, least, healthy) if _FAR * least < min(healthy, _FAR * _SAME) else None


# --- The layer's weights ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    """The projections of an attention layer of H heads: weights [in, H·D] and biases [H·D]; those of the output."""

    heads: int
    weights: Mapping[str, Tensor]  # of "q", "k", "v", "o"
    biases: Mapping[str, Tensor]

    @property
    def numbers(self) -> dict[str, float]:
        """The sizes that sentences have, and their roots."""
        width, columns = self.weights["q"].shape
        sizes = {"width": width, "head_width": columns // self.heads, "heads": self.heads}
        return {**sizes, **{f"root_{name}": size**0.5 for name, size in sizes.items()}}

    def compute(
        self,
        inputs: Inputs,
        allowed: Tensor | None = None,
        *,
        projections: str = "qkv",  # by which of the projections queries, keys and values are computed
        split: bool = True,  # False: [B, N, H·D] is viewed as [B, H, N, D]
        scale: str = "sqrt(head width)",
        axis: int = -1,  # over which the softmax is taken
        transposed: bool = False,  # the weights are
        merge: bool = True,  # False: [B, H, N, D] is viewed as [B, N, H·D]
        causal: bool = False,
        mask: str = "fill",
    ) -> Tensor:
        """Compute attention, [B, Q, out] in float64. allowed: [B, 1, 1 or Q, K], True = may attend."""
        query = inputs.query.double()
        key = query if inputs.key is None else inputs.key.double()
        value = key if inputs.value is None else inputs.value.double()
        q, k, v = (self._project(x, used, split) for x, used in zip((query, key, value), projections, strict=True))
        numbers = self.numbers
        root = numbers["root_head_width"]
        divided = {"none": 1.0, "sqrt(width)": numbers["root_width"], "head width": root**2}
        scores = q @ k.mT / {**divided, "times sqrt(head width)": 1 / root}.get(scale, root)
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -1e9)
        after = torch.ones((), dtype=torch.float64)
        if allowed is not None and mask != "ignored":
            allowed = ~allowed if mask == "inverted" else allowed.mT if mask == "queries" else allowed
            if mask == "weights":
                after = allowed.double()
            else:
                scores = scores.masked_fill(~allowed, 0.0 if mask == "zero" else -1e9)
        weights = scores.softmax(axis) * after
        heads = (weights.mT if transposed else weights) @ v
        merged = (heads.transpose(1, 2) if merge else heads).reshape(*query.shape[:2], -1)
        return merged @ self.weights["o"] + self.biases.get("o", 0.0) if "o" in self.weights else merged

    def _project(self, x: Tensor, role: str, split: bool) -> Tensor:
        """Project to [B, H, N, D]."""
        y = x @ self.weights[role] + self.biases.get(role, 0.0)
        if not split:
            return y.reshape(y.shape[0], self.heads, y.shape[1], -1)
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _read_layers(interface: Interface) -> Iterator[Layer]:
    """The ways to read the module's weights as those of one attention layer, the likeliest first."""
    weights, biases = _read_weights(interface.module)
    known = next((x.shape[1] for role, x in weights.items() if role in "qkv" and x.ndim == 3), interface.heads)
    weights = {role: x.flatten(0, -2) if role == "o" else x.flatten(1) for role, x in weights.items()}
    biases = {role: x.flatten() for role, x in biases.items()}
    if "qkv" in weights and weights["qkv"].shape == (interface.width, 3 * interface.width):
        heads = known or 1
        for order in ((3, heads), (heads, 3)):
            cut = {role: _cut(weights["qkv"], order, i) for i, role in enumerate("qkv")}
            if "qkv" in biases:
                biases |= {role: _cut(biases["qkv"][None], order, i)[0] for i, role in enumerate("qkv")}
            yield Layer(heads, weights | cut, dict(biases))
        return
    if not {"q", "k", "v"} <= weights.keys():
        raise NotApplicable("its weights are not named like those of one attention layer")
    columns = weights["q"].shape[1]
    for heads in [known] if known else [n for n in (8, 4, 2, 1) if columns % n == 0]:
        yield Layer(heads, weights, biases)


def _read_weights(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The first weight and the first bias of each role, in float64."""
    found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for path, parameter in module.named_parameters():
        named = read_name(path)
        role = "o" if named.is_output else "qkv" if named.is_fused else named.letters
        is_bias = parameter.ndim == 1 or path.rpartition(".")[2].startswith("b")
        found[is_bias].setdefault(role, parameter.detach().double())
    return found


def _cut(fused: Tensor, order: tuple[int, int], i: int) -> Tensor:
    """The i-th of three weights [in, H·D] in one [in, ...], whose columns are in the order (3, H) or (H, 3)."""
    parts = fused.unflatten(1, (*order, -1))
    return parts.select(1 if order[0] == 3 else 2, i).flatten(1)
