"""The graphs of every task and of bare modules: what they say of their tensors is true of every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import headwise
from headwise import masks
from headwise.errors import ArgumentError, ExportError
from headwise.export.graphs import make_graphs
from headwise.graphs.axes import name_axes
from headwise.graphs.graph import Graph
from headwise.graphs.weights import with_weights
from headwise.models import Bert, BertConfig, CausalConfig, CausalLanguageModel, EncoderDecoder, EncoderDecoderConfig
from headwise.nn import Decoder, Encoder, LatentAttention, MultiHeadAttention
from tests.export import tiny

TASKS: dict[str, tuple[Callable[[], Any], Any]] = {  # a task, and real inputs of it
    "classify": (tiny.classifier, ["ant bee antx", "gnu hen"]),
    "classify with latents": (lambda: tiny.classifier("latent"), ["ant bee antx", "gnu hen"]),
    "answer": (tiny.answerer, [("ant", "bee ant cat")]),
    "masked": (tiny.masked, ["ant bee ant bee", "cat"]),
    "causal": (tiny.causal, ["ant bee ant bee"]),
    "forecast": (tiny.forecaster, tiny.SERIES),
    "forecast, causal": (lambda: tiny.forecaster("causal"), tiny.SERIES),
    "match": (tiny.matcher, None),
    "translate": (tiny.translator, ["ant bee cat", "dog"]),
}


def check(graph: Graph) -> None:
    """Names are there once; every example has the axes that are said, with one size for each word."""
    names = [value.name for value in (*graph.inputs, *graph.outputs)]
    assert len(set(names)) == len(names)
    assert len(graph.examples) >= 2
    for number, given in enumerate(graph.examples):
        with torch.no_grad():
            found = graph.module(*given)
        tensors = (*given, *((found,) if isinstance(found, torch.Tensor) else found))
        sizes: dict[str, int] = {}
        for value, tensor in zip((*graph.inputs, *graph.outputs), tensors, strict=True):
            assert tensor.dtype == value.dtype
            assert tensor.dim() == len(value.axes)
            for axis, size in zip(value.axes, tensor.shape, strict=True):
                assert size == (sizes.setdefault(axis, size) if isinstance(axis, str) else axis), value
        assert number or all(size > 1 for size in sizes.values())  # or the trace would take them for fixed
    assert not any(
        parameter.requires_grad and parameter.device.type != "cpu" for parameter in graph.module.parameters()
    )


@pytest.mark.parametrize("name", TASKS)
def test_of_a_task(name: str) -> None:
    make, rows = TASKS[name]
    task = make()
    alone, real = make_graphs(task), make_graphs(task, rows)
    for graph in (*alone, *real):
        check(graph)
    assert all(graph.real for graph in real)
    assert [graph.name for graph in alone] == [graph.name for graph in real]
    if rows is not None:
        assert any(len(more.examples) > len(fewer.examples) for fewer, more in zip(alone, real, strict=True))


@pytest.mark.parametrize("name", ["causal", "match", "translate"])
def test_what_one_call_gives_to_the_next_is_contiguous(name: str) -> None:
    """A package of AOTInductor does not look at strides, and would read another tensor."""
    make, rows = TASKS[name]
    graphs = make_graphs(make(), rows)
    read = {value.name.removeprefix("past_") for graph in graphs for value in graph.inputs}
    given = []
    for graph in graphs:
        for example in graph.examples:
            assert all(tensor.is_contiguous() for tensor in example)
            with torch.no_grad():
                found = zip(graph.outputs, graph.module(*example), strict=True)
            given += [tensor for value, tensor in found if value.name in read]
    assert given
    assert all(tensor.is_contiguous() for tensor in given)


@pytest.mark.parametrize("encoder", ["small", "bert"])
def test_real_inputs_are_what_the_model_is_given_when_it_predicts(encoder: str) -> None:
    task = tiny.classifier()
    if encoder == "bert":  # which predicts without padding
        task.model.encoder = Bert(BertConfig(len(task.subwords), 16, 1, 2, 32, 64))
        task.predict(["ant bee antx", "gnu"])
    (graph,) = make_graphs(task, ["ant bee antx", "gnu"])
    ids, mask, types = graph.examples[0]
    batch = task.collate(
        task.encode(task.read({"text": ["gnu", "ant bee antx"]}, task.options, targets=False), targets=False)
    )
    assert sorted(ids.tolist()) == sorted(batch["input_ids"].tolist())
    assert mask.dtype == types.dtype == torch.int64


def test_of_one_text_there_are_two_rows_to_trace() -> None:
    (graph,) = make_graphs(tiny.classifier(), "ant bee")
    assert len(graph.examples[0][0]) == 2


@pytest.mark.parametrize(
    ("module", "mask"),
    [
        (MultiHeadAttention(8, 2), masks.causal()),
        (Encoder(8, num_layers=1, num_heads=2), masks.window(1, 0)),
        (Decoder(8, num_layers=1, num_heads=2, memory_dim=12), None),
        (LatentAttention(3, 8, input_dim=6, num_heads=2), None),
        (Bert(BertConfig(20, 8, 1, 2, 16, 32)), None),
        (Bert(BertConfig(20, 8, 1, 2, 16, 32, pooler=False)), None),
        (EncoderDecoder(EncoderDecoderConfig(20, dim=8, num_heads=2, copies=True)), None),
        (CausalLanguageModel(CausalConfig(20, 8, 1, 2)), None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_of_a_module(module: nn.Module, mask: masks.Mask | None) -> None:
    for graph in make_graphs(module, mask=mask):
        check(graph)
        assert not graph.real


def test_the_mask_of_a_module_stands_inside_its_graph() -> None:
    module = MultiHeadAttention(8, 2).eval()
    (graph,) = make_graphs(module, mask=masks.causal())
    hidden, padding = graph.examples[0]
    torch.testing.assert_close(graph.module(hidden, padding), module(hidden, mask=masks.causal(), real=padding))


def test_of_any_module_the_examples_tell_what_is_open() -> None:
    given = [(torch.randn(2, 5), torch.randn(5, 4)), (torch.randn(3, 6), torch.randn(6, 4))]

    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x @ y

    (graph,) = make_graphs(Product(), examples=given)
    check(graph)
    assert [value.axes for value in graph.inputs] == [("input_0_0", "input_0_1"), ("input_0_1", 4)]
    assert graph.outputs[0].axes == ("input_0_0", 4)


def test_examples_of_a_module_that_is_known_are_more_to_compare_on() -> None:
    module = MultiHeadAttention(8, 2)
    own, given = make_graphs(module)[0], (torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.bool))
    (graph,) = make_graphs(module, mask=masks.causal(), examples=[given])
    assert (graph.inputs, len(graph.examples)) == (own.inputs, len(own.examples) + 1)
    with pytest.raises(ArgumentError, match=r"expected hidden float32 \[batch, length, 8\], real bool .* Received: "):
        make_graphs(module, examples=[given[:1]])


def test_the_first_example_is_one_that_holds_for_any_size() -> None:
    (graph,) = make_graphs(nn.Linear(4, 2), examples=[(torch.randn(1, 4),), (torch.randn(3, 4),)])
    assert [len(given[0]) for given in graph.examples] == [3, 1]
    with pytest.raises(ArgumentError, match="every dynamic axis has size 2 or more"):
        make_graphs(nn.Linear(4, 2), examples=[(torch.randn(1, 4),), (torch.randn(0, 4),)])


def test_an_axis_is_the_word_whose_size_it_has_in_every_example() -> None:
    words = {"batch": (2, 3), "length": (5, 7)}
    tensors = [torch.zeros(2, 4, 5, 6), torch.zeros(3, 4, 7, 9)]
    assert name_axes("out", tensors, words) == ("batch", 4, "length", "out_3")


@pytest.mark.parametrize("name", ["classify", "classify with latents", "forecast, causal", "match", "translate"])
def test_weights_are_named_and_numbered_as_the_records_are(name: str) -> None:
    make, rows = TASKS[name]
    for graph in make_graphs(make(), rows):
        more = with_weights(graph)
        check(more)
        with headwise.watch(graph.module) as seen, torch.no_grad():
            graph.module(*graph.examples[0])
            found = more.module(*graph.examples[0])[len(graph.outputs) :]
        for value, weights, record in zip(more.outputs[len(graph.outputs) :], found, seen, strict=False):
            assert value.name.split(".call")[0].endswith(record.site.name.removeprefix("model."))
            torch.testing.assert_close(weights, record.weights(), rtol=1e-5, atol=1e-6)


def test_a_model_without_attention_has_no_weights_to_return() -> None:
    graph = make_graphs(nn.Linear(4, 2), examples=[(torch.randn(2, 4),), (torch.randn(3, 4),)])[0]
    with pytest.raises(ExportError, match="Leave --weights out"):
        with_weights(graph)


@pytest.mark.parametrize(
    ("subject", "options", "said"),
    [
        (nn.Linear(2, 2), {}, "Pass examples="),
        (nn.Linear(2, 2), {"mask": masks.causal()}, "mask: expected a module of headwise.nn"),
        (nn.Linear(2, 2), {"examples": [(torch.randn(2, 2),)]}, "two or more calls"),
        (nn.Linear(2, 2), {"examples": [(torch.randn(2, 3),), (torch.randn(3, 3),)]}, "Linear cannot be called"),
        (nn.Linear(2, 2), {"examples": [(torch.randn(3, 2),), (torch.randn(2, 3, 2),)]}, "numbers of axes"),
        (nn.Linear(2, 2).half(), {}, r"expected float32 weights\. Received: torch.float16"),
    ],
)
def test_what_there_is_no_graph_of(subject: nn.Module, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make_graphs(subject, **options)
