"""An export format made outside the package is seen wherever those of the package are: export, card, command."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwise.cli import export as command
from headwise.errors import ArgumentError
from headwise.export import FORMATS
from headwise.export.comparing import compared
from headwise.export.exporting import export
from headwise.export.format import Format, Option
from headwise.export.manifest import GraphFile
from headwise.export.speed import measure
from headwise.export.writing import Order, Written


def write(order: Order, *, layout: str = "C") -> Written:
    """A matrix as a file of NumPy."""
    (graph,) = order.graphs
    path, dtype = order.folder / "matrix.npy", {"fp64": np.float64, "fp32": np.float32}[order.precision]
    np.save(path, order.subject.state_dict()["weight"].numpy().T.astype(dtype, order=layout))

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy((x.numpy() @ np.load(path)).astype(np.float32))

    differences = compared(graph, [(run(*example),) for example in graph.examples], 1e-4)
    file = GraphFile(graph.name, path.name, graph.inputs, graph.outputs, differences, 1e-4)
    taken = (measure({"PyTorch": graph.module, "NumPy": run}, graph.examples[0], graph.name, 2),) if order.speed else ()
    return Written([file], ["A toy."], {"numpy": np.__version__}, {"layout": layout}, taken)


def write_only(order: Order) -> Written:
    """Not compared, and in a folder."""
    order.folder.joinpath("1").mkdir()
    return Written([GraphFile("model", "1", order.graphs[0].inputs, order.graphs[0].outputs)])


def call(graph: GraphFile) -> list[str]:
    (given,), (found,) = graph.inputs, graph.outputs
    return [f'values["{found.name}"] = values["{given.name}"] @ np.load("{graph.file}")']


MATRIX = Format(
    name="matrix",
    title="a NumPy matrix",
    function=f"{__name__}:write",
    precisions=("fp64", "fp32"),
    imports=("import numpy as np",),
    array="np.array",
    call=call,
    options=(Option("layout", "The order in memory.", ("C", "F")),),
    examples=True,
    more=lambda manifest: [f"It is a matrix in {manifest.precision}."],
)


@pytest.fixture(autouse=True)
def matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "matrix", EntryPoint("matrix", f"{__name__}:MATRIX", FORMATS.group))


EXAMPLES = [(torch.ones(2, 3),), (torch.ones(5, 3),)]


def test_a_module_is_exported_measured_and_described(tmp_path: Path) -> None:
    found = export(nn.Linear(3, 4, bias=False), "matrix", tmp_path / "out", precision="fp32", examples=EXAMPLES)
    assert set(found.files) == {"matrix.npy", "export.json", "checksums.json", "card.md"}
    assert (found.manifest.kind, found.manifest.precision) == ("matrix", "fp32")
    assert set(found.speed[0].seconds) == {"PyTorch", "NumPy"}
    card = (found.folder / "card.md").read_text(encoding="utf-8")
    assert "as a NumPy matrix, precision fp32 (layout C)" in card
    assert "- A toy." in card
    assert "| graph | batch | first input | PyTorch | NumPy |" in card
    assert "It is a matrix in fp32." in card
    code = card.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=found.folder, capture_output=True, text=True, check=True)
    assert done.stdout == "(5, 4)\n"


def test_what_it_does_not_compare_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "matrix", replace(MATRIX, function=f"{__name__}:write_only"))
    found = export(nn.Linear(3, 4, bias=False), "matrix", tmp_path / "out", examples=EXAMPLES)
    assert found.manifest.notes == ("Not compared with PyTorch: 1.",)
    card = (found.folder / "card.md").read_text(encoding="utf-8")
    assert "\n\nNot compared with the model in PyTorch.\n\n## Files" in card
    assert "\n\n`1/`\n\n" in card
    assert [str(*column.cells) for column in command._table(found, "").renderables[-1].columns[:3]] == [
        "1/",
        "0 kB",
        "not compared",
    ]


def test_its_first_precision_is_the_default_and_its_options_are_checked(tmp_path: Path) -> None:
    found = export(nn.Linear(3, 4, bias=False), "matrix", tmp_path / "out", examples=EXAMPLES, speed=False)
    assert (found.manifest.precision, found.speed, found.manifest.options) == ("fp64", (), {"layout": "C"})
    found = export(nn.Linear(3, 4, bias=False), "matrix", tmp_path / "out", layout="F", examples=EXAMPLES, speed=False)
    assert np.load(found.folder / "matrix.npy").flags.f_contiguous
    for given, says in (
        ({"to": "matrix", "precision": "int8"}, r"expected one of fp64, fp32 for matrix.* int8 is available for onnx$"),
        ({"to": "torch", "precision": "fp64"}, r"precision='fp64'\. fp64 is available for matrix$"),
        ({"to": "matrix", "weights": True}, r"weights: this is an option of onnx and torch"),
        ({"to": "matrix", "layout": "D"}, r"layout: expected one of C, F\. Received: layout='D'"),
        ({"to": "onnx", "layout": "F"}, r"layout: this is an option of matrix, not of onnx\."),
        ({"to": "matrix", "outlay": "F"}, r"outlay: this is an option of no format\."),
        ({"to": "table"}, r"expected one of onnx, torch, savedmodel, matrix\. Received: to='table'"),
    ):
        options: dict[str, Any] = {"precision": None, **given}
        with pytest.raises(ArgumentError, match=says):
            export(nn.Linear(3, 4), out=tmp_path / "no", **options)


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    """Those of the command, where the format is registered before `headwise.cli` is imported."""
    yield {each.name: each for each in importlib.reload(command).export.params}
    del FORMATS["matrix"]
    importlib.reload(command)


def test_the_command_offers_it(options: dict[str, Any]) -> None:
    assert options["kind"].type.choices == ("onnx", "torch", "savedmodel", "matrix")
    assert options["precision"].type.choices == ("fp32", "fp16", "int8", "bf16", "fp64")
    assert (options["layout"].type.choices, options["layout"].help) == (("C", "F"), "matrix: The order in memory.")
    assert options["precision"].help.endswith("savedmodel: fp32. matrix: fp64, fp32.  [default: fp32]")
