"""Attention computed from a layer's own weights, by the definition and with one mistake: which is its output?

This is for layers whose operations torch does not see, of Keras on TensorFlow and JAX. Their projections are read by
their names: kernels [in, H·D], [in, H, D] or, of all three in one, [in, 3·H·D]; and [H·D, out] or [H, D, out].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.finding import Finding, NotChecked
from headwise.doctor.reading.projection_names import PLURALS, read_name
from headwise.doctor.subject import foreign_backend
from headwise.language import Sentence, join

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs, Interface, MaskInput
    from headwise.doctor.patient import Patient
    from headwise.doctor.subject import Subject

FINDINGS = (
    *("wrong-scale", "softmax-axis", "head-split", "head-merge", "weights-transposed", "projection-reused"),
    *("mask-ignored", "mask-polarity", "mask-broadcast", "mask-multiplied", "mask-after-softmax"),
)

_LENGTH = 7  # of the inputs: unlikely to equal a width or a number of heads
_SAME = 1e-4  # relative error of the same computation in float32
_FAR = 100  # times as far as the mistake: the definition, if it is a mistake


class Mistake(NamedTuple):
    """A computation that differs from the definition in one decision."""

    name: str  # of the finding
    sentence: str
    changes: Mapping[str, Any]  # of the arguments of Layer.compute


class Match(NamedTuple):
    """The computation that gives an output."""

    layer: Layer
    right: Mapping[str, Any]  # the definition, as arguments of Layer.compute
    mistake: Mistake | None  # None: it is the definition
    error: float  # the largest difference, relative to the largest output
    healthy_error: float  # the same for the definition


def check(patient: Patient) -> Iterator[Finding]:
    found = recompute(patient) if foreign_backend(patient.module) else {}
    for parameter, match in found.items():
        if match.mistake is not None:
            told = join((*filter(None, [parameter and f"`{parameter}`"]), match.mistake.sentence), ": ")
            yield Finding(
                match.mistake.name,
                "bug",
                Sentence(
                    "{told}; computed this way from its own weights, the output matches to {error:.0e}, and by "
                    "the definition to {healthy_error:.0e}"
                ).format(told=told, error=match.error, healthy_error=match.healthy_error),
                "do this as the definition of attention does; the evidence says what the module does instead",
                patient.where,
            )


@torch.no_grad()
def recompute(subject: Subject) -> dict[str, Match]:
    """Find the computation that gives a layer's output, without a mask ("") and with each mask; {} if its weights are
    not those of one attention layer. Raises NotChecked if no computation here gives the output.
    """
    interface = subject.interface.on(at_rest(subject.interface.module))
    length = interface.length or _LENGTH
    inputs = interface.inputs(3, length, length)
    layers = list(_read_layers(interface))
    if not layers:
        return {}
    output = _run(interface, inputs)
    match = _best(
        _match(layer, inputs, output, {"causal": causal}, _mistakes(layer), None)
        for layer in layers
        for causal in (False, True)
    )
    if match is None:
        raise NotChecked("neither the definition nor a known mistake gives its output")
    used = {mask.what: mask for mask in reversed(interface.masks) if not mask.own}
    found = {mask.parameter: _match_mask(match, interface, inputs, mask) for mask in used.values()}
    return {"": match, **{name: each for name, each in found.items() if each is not None}}


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


def _best(found: Iterable[Match | None]) -> Match | None:
    return min(filter(None, found), key=lambda each: (each.mistake is not None, each.error), default=None)


def _run(interface: Interface, inputs: Inputs, **given: Tensor) -> Tensor:
    try:  # the user's code may raise anything
        return interface.run(inputs.each(torch.clone), **given).output.double()  # type: ignore[arg-type]
    except Exception as error:
        raise NotChecked(Sentence("a call raises {name}").format(name=type(error).__name__)) from error


def _match(
    layer: Layer,
    inputs: Inputs,
    output: Tensor,
    right: Mapping[str, Any],
    mistakes: Iterable[Mistake],
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


# --- The mistakes -----------------------------------------------------------------------------------------------------


def _mistakes(layer: Layer) -> Iterator[Mistake]:
    width, head_width = len(layer.weights["q"]), layer.head_width
    for scale in (1.0, width**-0.5, 1 / head_width, head_width**0.5):
        said: str = Sentence(
            "the scores are multiplied by {scale:.3f}; the head width is {head_width}, expected {expected:.3f}"
        ).format(scale=scale, head_width=head_width, expected=layer.scale)
        yield Mistake("wrong-scale", said, {"scale": scale})
    for axis, over in ((-2, "the queries"), (1, "the heads")):
        said = Sentence(
            "the softmax is taken over {over}, so that the weights of a query over its keys do not sum to 1"
        ).format(over=over)
        yield Mistake("softmax-axis", said, {"axis": axis})
    said = "[B, N, H·D] is viewed as [B, H, N, D] without a transpose, so that every head mixes positions"
    yield Mistake("head-split", said, {"split": False})
    said = "[B, H, N, D] is viewed as [B, N, H·D] without a transpose, so that positions and heads are mixed"
    yield Mistake("head-merge", said, {"merge": False})
    said = "the weights are transposed: the values are summed over the queries, not over the keys"
    yield Mistake("weights-transposed", said, {"transposed": True})
    for role, used in ("vk", "vq", "kq", "kv", "qk", "qv"):
        said = Sentence("{these} are computed by the projection of the {those}").format(
            these=PLURALS[role], those=PLURALS[used]
        )
        yield Mistake("projection-reused", said, {"projections": "qkv".replace(role, used)})


_MASK_MISTAKES = (
    Mistake("mask-ignored", "the mask has no effect", {"mask": "ignored"}),
    Mistake("mask-polarity", "the mask is used with the opposite polarity", {"mask": "inverted"}),
    Mistake("mask-broadcast", "the mask hides queries instead of keys", {"mask": "queries"}),
    Mistake("mask-multiplied", "forbidden scores are multiplied by 0 instead of set to -inf: they keep a weight",
            {"mask": "zero"}),
    Mistake("mask-after-softmax", "the mask is applied to the weights after the softmax, so that they do not sum to 1",
            {"mask": "weights"}),
)  # fmt: skip


# --- The layer's weights ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    """The projections of an attention layer of H heads: weights [in, H·D] and biases [H·D]; those of the output."""

    heads: int
    weights: Mapping[str, Tensor]  # of "q", "k", "v", "o"
    biases: Mapping[str, Tensor]

    @property
    def head_width(self) -> int:
        return self.weights["q"].shape[1] // self.heads

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_width**-0.5

    def compute(
        self,
        inputs: Inputs,
        allowed: Tensor | None = None,
        *,
        projections: str = "qkv",  # by which of the projections queries, keys and values are computed
        split: bool = True,  # False: [B, N, H·D] is viewed as [B, H, N, D]
        scale: float | None = None,
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
        scores = q @ k.mT * (self.scale if scale is None else scale)
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
    """The ways to read the module's weights as those of one attention layer, the likeliest first; none if their names
    are not those of one.
    """
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
    if {"q", "k", "v"} <= weights.keys():
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
