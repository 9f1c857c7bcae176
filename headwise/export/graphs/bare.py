"""The graphs of models and modules without a task: their inputs follow from their class or from examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.export.graph import Graph, Value
from headwise.export.graphs import answer, attention, classify, forecast, language, match
from headwise.export.graphs.axes import axes_of, sizes_of_words
from headwise.export.graphs.tokens import IDS, MASK, TYPES, random_tokens
from headwise.export.tracing import first_line
from headwise.masks import Mask
from headwise.models.bert import Bert
from headwise.models.image_text import ImageText
from headwise.models.language_model import MaskedLanguageModel
from headwise.models.latent_encoder import LatentEncoder
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster
from headwise.models.small_encoder import SmallEncoder
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier


def graphs(
    module: nn.Module, *, mask: Mask | Tensor | None = None, examples: Sequence[tuple[Tensor, ...]] = ()
) -> tuple[Graph, ...]:
    """The graphs of a model of headwise, of a module of `headwise.nn`, or, with examples, of any module.

    For the first two, examples are additional inputs for the comparison; for any other module they define its inputs.

    Raises:
        ArgumentError: another module without examples, a mask for a module without masks, or examples that do not fit.
    """
    known = type(module) in (*_MODELS, *attention.MODULES)
    if isinstance(module, attention.MODULES) and (known or not examples):
        return (_with(attention.graph(module, mask), examples),)
    if mask is not None:
        raise ArgumentError(f"mask: expected a module of headwise.nn. Received: a {type(module).__name__}")
    if examples and not known:
        return (_of_examples(module, examples),)
    for kind, make in _MODELS.items():
        if isinstance(module, kind):
            graph, *others = make(module)
            if examples and others:
                raise ArgumentError(f"examples: a {type(module).__name__} defines its own. Leave them out")
            return (_with(graph, examples), *others)
    raise ArgumentError(
        f"the inputs of a {type(module).__name__} are unknown. Pass examples=: the tensors of two calls of different "
        f"sizes. No examples need {', '.join(kind.__name__ for kind in _MODELS)} and the modules of headwise.nn"
    )


def _with(graph: Graph, examples: Sequence[tuple[Tensor, ...]]) -> Graph:
    """The graph with more examples, appended to its own."""
    for given in examples:
        fits = len(given) == len(graph.inputs) and all(
            x.dtype == value.dtype and x.dim() == len(value.axes) for x, value in zip(given, graph.inputs, strict=True)
        )
        if not fits:
            wanted = ", ".join(f"{value.name} {_told(value.dtype, value.axes)}" for value in graph.inputs)
            received = ", ".join(_told(x.dtype, x.shape) for x in given)
            raise ArgumentError(f"examples: expected {wanted}. Received: {received}")
    return replace(graph, examples=[*graph.examples, *examples])


def _told(dtype: torch.dtype, axes: Sequence[int | str]) -> str:
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, axes))}]"


def _of_encoder(model: Bert | SmallEncoder | LatentEncoder) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → last_hidden_state, and pooled if it has a pooler."""
    module: nn.Module = model
    width = model.config.dim
    rows: int | str = model.config.num_latents if isinstance(model, LatentEncoder) else "length"
    outputs = [Value("last_hidden_state", torch.float32, ("batch", rows, width))]
    types = model.config.num_token_types if isinstance(model, Bert) else 2
    if isinstance(model, Bert) and model.pooler is not None:
        module = _WithPooled(model)
        outputs.append(Value("pooled", torch.float32, ("batch", width)))
    examples = random_tokens(model.config.vocab_size, _longest(model), types)
    return (Graph("model", module, (IDS, MASK, TYPES), tuple(outputs), examples),)


class _WithPooled(nn.Module):
    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.bert(input_ids, attention_mask, token_type_ids)
        return hidden, self.bert.pool(hidden)


_MODELS: dict[type[nn.Module], Callable[[Any], tuple[Graph, ...]]] = {
    Bert: _of_encoder,
    SmallEncoder: _of_encoder,
    LatentEncoder: _of_encoder,
    TextClassifier: lambda model: (classify.graph(model, [], _longest(model.encoder)),),
    SpanReader: lambda model: (answer.graph(model, [], _longest(model.encoder)),),
    MaskedLanguageModel: lambda model: (language.graph(model, []),),
    PatchForecaster: lambda model: (forecast.graph(model, []),),
    CausalPatchForecaster: lambda model: (forecast.graph(model, []),),
    ImageText: lambda model: match.graphs_of_model(model, [], []),
}


def _longest(encoder: nn.Module) -> int | None:
    return encoder.config.max_positions if isinstance(encoder, Bert) else None


@torch.no_grad()
def _of_examples(module: nn.Module, examples: Sequence[tuple[Tensor, ...]]) -> Graph:
    """model: input_0, input_1 … → output_0, output_1 …; axes whose sizes differ between examples are dynamic."""
    if len(examples) < 2 or len({len(given) for given in examples}) > 1:
        raise ArgumentError(
            f"examples: expected two or more calls with equal numbers of tensors. Received: {len(examples)} calls of "
            f"{sorted({len(given) for given in examples})} tensors"
        )
    outputs = [_called(module, number, given) for number, given in enumerate(examples, 1)]
    calls = [(*given, *found) for given, found in zip(examples, outputs, strict=True)]
    if len({tuple((x.dtype, x.dim()) for x in call) for call in calls}) > 1:
        raise ArgumentError(
            "examples: expected the same dtypes and numbers of axes in each call, for inputs and outputs"
        )
    words: dict[str, tuple[int, ...]] = {}
    inputs = _values("input", examples, words)
    sizes = sizes_of_words(inputs, examples)
    # A trace with size 1 may be valid for size 1 only.
    first = next((n for n in range(len(examples)) if all(each[n] > 1 for each in sizes.values())), None)
    if first is None:
        raise ArgumentError("examples: expected a call in which every dynamic axis has size 2 or more")
    ordered = [examples[first], *examples[:first], *examples[first + 1 :]]
    return Graph("model", module, inputs, _values("output", outputs, sizes), ordered)


def _called(module: nn.Module, number: int, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    try:
        found = module(*given)
    except Exception as cause:  # a user's module may raise anything
        raise ArgumentError(
            f"examples: {type(module).__name__} cannot be called with the tensors of call {number}: {first_line(cause)}"
        ) from cause
    tensors = (found,) if isinstance(found, Tensor) else found
    if not isinstance(tensors, tuple | list) or not all(isinstance(each, Tensor) for each in tensors):
        raise ArgumentError(
            f"expected a module that returns tensors. Received: {type(module).__name__}, which returns something else"
        )
    return tuple(tensors)


def _values(name: str, calls: Sequence[tuple[Tensor, ...]], words: dict[str, tuple[int, ...]]) -> tuple[Value, ...]:
    found = []
    for number, tensors in enumerate(zip(*calls, strict=True)):
        called = f"{name}_{number}"
        found.append(Value(called, tensors[0].dtype, axes_of(called, tensors, words)))
    return tuple(found)
