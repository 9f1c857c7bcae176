"""Programs and packages of PyTorch: any batch and length, the same numbers without headwise, clear refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import nn as modules
from headwise.errors import ExportError
from headwise.export.comparing import compare, compared
from headwise.export.graphs import make_graphs
from headwise.export.torch import programs
from headwise.export.torch.programs import run_alone
from headwise.export.tracing import trace
from headwise.graphs.graph import Graph, Value
from tests.conftest import missing
from tests.export import tiny


class Reader(nn.Module):
    """One layer of attention with padding, and the mean of what it made: two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(11, 8)
        self.layer = modules.EncoderLayer(8, 2, ffn_dim=16)

    def forward(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        states = self.layer(self.word(ids), real=real)
        return states, states.mean(1)


def example(batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(11, (batch, length), generator=drawn)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=drawn)
    return ids, torch.arange(length) < lengths


def graph_of(module: nn.Module, **changed: Any) -> Graph:
    axes = ("batch", "length")
    inputs = (Value("ids", torch.int64, axes), Value("real", torch.bool, axes))
    outputs = (Value("states", torch.float32, (*axes, 8)), Value("mean", torch.float32, ("batch", 8)))
    examples = [example(3, 7, 0), example(1, 1, 1), example(2, 40, 2)]
    return dataclasses.replace(Graph("model", module.eval(), inputs, outputs, examples), **changed)


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    return graph_of(Reader())


def test_a_program_runs_any_batch_and_length_where_there_is_no_headwise(graph: Graph, tmp_path: Path) -> None:
    half = tmp_path / "half.pt2"
    programs.save(trace(graph), tmp_path / "model.pt2")
    programs.save(trace(graph, torch.bfloat16), half)
    found, found_half = run_alone([(tmp_path / "model.pt2", graph.examples), (half, graph.examples)])
    expected = [graph.module(*each) for each in graph.examples]
    for place, value in enumerate(graph.outputs):
        wanted = [each[place] for each in expected]
        assert compare(value.name, wanted, [each[place] for each in found]).relative < 1e-5
        # The same dtypes outside; inside fewer digits, but not nothing.
        assert 1e-4 < compare(value.name, wanted, [each[place] for each in found_half]).relative < 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.pt2", "model.pt2"]


@pytest.mark.parametrize(
    "makes",
    [
        (tiny.causal,),
        pytest.param(
            (lambda: tiny.classifier("latent"), tiny.answerer, tiny.matcher, tiny.translator), marks=pytest.mark.slow
        ),
    ],
    ids=["steps", "the others"],
)
def test_every_kind_of_model_is_a_program(makes: tuple[Callable[[], Any], ...], tmp_path: Path) -> None:
    # Those whose models are of another kind; that the graphs of all tasks can be traced is seen in onnx/test_export.py.
    graphs = [graph for make in makes for graph in make_graphs(make())]
    paths = [tmp_path / f"{number}.pt2" for number in range(len(graphs))]
    for graph, path in zip(graphs, paths, strict=True):
        programs.save(trace(graph), path)
    found = run_alone([(path, graph.examples) for path, graph in zip(paths, graphs, strict=True)])
    for graph, given in zip(graphs, found, strict=True):
        assert compared(graph, given, 1e-5)


@pytest.mark.slow
def test_a_package_is_compiled_and_runs_where_there_is_no_headwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if programs.compiler() is None:
        missing("no C++ compiler here: install g++")
    # Precompiled headers save time from the second package on; this is the only one.
    monkeypatch.setattr(torch._inductor.config, "cpp_cache_precompile_headers", False)
    monkeypatch.setattr(torch._inductor.config.aot_inductor, "precompile_headers", False)
    monkeypatch.setattr(torch._inductor.config.aot_inductor, "compile_wrapper_opt_level", "O0")

    class Scores(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return (q @ k.transpose(-1, -2)).softmax(-1)

    inputs = tuple(Value(name, torch.float32, ("batch", axis, 4)) for name, axis in (("q", "rows"), ("k", "columns")))
    outputs = (Value("weights", torch.float32, ("batch", "rows", "columns")),)
    examples = [(torch.randn(b, q, 4), torch.randn(b, k, 4)) for b, q, k in ((2, 3, 5), (1, 1, 9))]
    graph = Graph("model", Scores(), inputs, outputs, examples)
    path = tmp_path / "model.aoti.pt2"
    programs.compile_package(trace(graph), path)
    (found,) = run_alone([(path, examples)])
    for (received,), given in zip(found, examples, strict=True):
        torch.testing.assert_close(received, Scores()(*given))
    assert [each.name for each in tmp_path.iterdir()] == ["model.aoti.pt2"]


def test_what_cannot_be_run_alone_is_said_with_its_last_line(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "broken.pt2").write_bytes(b"no program")
    with pytest.raises(ExportError, match=r"^broken.pt2: PyTorch alone cannot run it: \S+"):
        run_alone([(tmp_path / "broken.pt2", graph.examples)])
