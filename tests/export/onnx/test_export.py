"""Tasks and modules as ONNX files: ONNX Runtime computes what PyTorch does at any size, or they are refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.errors import ArgumentError, ExportError
from headwise.export import manifest
from headwise.export.comparing import MEAN_SHARE
from headwise.export.exported import Exported
from headwise.export.exporting import export as export_to
from headwise.export.graphs import make_graphs
from headwise.export.onnx import attention
from headwise.export.onnx import write as writing
from headwise.export.onnx.check import compared
from headwise.export.onnx.export import fingerprint
from headwise.export.onnx.session import Runtime, Session
from headwise.nn import MultiHeadAttention
from headwise.tasks.classify import Classify
from tests.export import tiny

export = functools.partial(export_to, to="onnx", speed=False)
TEXTS = ["ant bee antx cat", "gnu"]


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classify, Exported]:
    """A classifier with its weights in a file of their own, and the attention weights as outputs."""
    task = tiny.classifier()
    out = tmp_path_factory.mktemp("export") / "onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "EXTERNAL", 1000)
        return task, export(task, out=out, weights=True, rows=TEXTS)


def run(done: Exported, *tensors: Tensor, graph: int = 0) -> dict[str, Tensor]:
    """The outputs of a graph by name."""
    file = done.manifest.graphs[graph]
    names = [value.name for value in file.outputs]
    return dict(zip(names, Session(done.folder, file, Runtime(threads=1)).giving(*names)(*tensors), strict=True))


def tokens(batch: int, length: int, real: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, of which `real` are no padding in the last row."""
    ids = torch.randint(5, 30, (batch, length))
    mask = torch.ones_like(ids)
    mask[-1, real:] = 0
    return ids, mask, torch.zeros_like(ids)


# --- What is written --------------------------------------------------------------------------------------------------


def test_the_folder_has_all_that_the_task_is_made_of_again(classified: tuple[Classify, Exported]) -> None:
    _, done = classified
    assert {"config.yaml", "export.json", "model.onnx", "model.onnx.data", "tokenizer.json"} <= set(done.files)
    assert manifest.read(done.folder) == done.manifest
    assert done.manifest.task == "classify"
    assert [value.name for value in done.manifest.graphs[0].inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    (found,) = (each for each in done.manifest.graphs[0].differences if each.output == "logits")
    assert found.relative < 1e-5
    assert found.agreement == 1.0


def test_large_weights_lie_beside_the_graph_and_move_with_it(
    classified: tuple[Classify, Exported], tmp_path: Path
) -> None:
    task, done = classified
    model = onnx.load(done.folder / "model.onnx", load_external_data=False)
    places = {
        entry.value for each in model.graph.initializer for entry in each.external_data if entry.key == "location"
    }
    assert places == {"model.onnx.data"}
    for name in places | {"model.onnx"}:
        (tmp_path / name).write_bytes((done.folder / name).read_bytes())
    given = tokens(2, 5, 3)
    moved = dataclasses.replace(done, folder=tmp_path)
    torch.testing.assert_close(run(moved, *given)["logits"], task.model(*given).detach(), rtol=1e-4, atol=1e-5)


def test_the_model_says_what_it_is_and_nothing_of_this_machine(classified: tuple[Classify, Exported]) -> None:
    task, done = classified
    model = onnx.load(done.folder / "model.onnx", load_external_data=False)
    said = {each.key: each.value for each in model.metadata_props}
    assert said["headwise.task"] == "classify"
    assert said["headwise.source"] == fingerprint(task)
    assert json.loads(said["headwise.outputs"])[0] == {"name": "logits", "dtype": "float32", "axes": ["batch", 4]}
    shape = model.graph.input[0].type.tensor_type.shape
    assert [dim.dim_param for dim in shape.dim] == ["batch", "length"]
    assert str(Path(headwise.__file__).parent).encode() not in (done.folder / "model.onnx").read_bytes()


def test_the_fingerprint_is_of_the_weights() -> None:
    task = tiny.classifier()
    before = fingerprint(task)
    assert before == fingerprint(tiny.classifier())
    with torch.no_grad():
        task.model.head.bias[0] += 1
    assert fingerprint(task) != before


# --- What it computes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "length", "real"), [(1, 1, 1), (1, 9, 9), (5, 40, 17), (7, 2, 1)])
def test_any_batch_and_length(classified: tuple[Classify, Exported], batch: int, length: int, real: int) -> None:
    task, done = classified
    given = tokens(batch, length, real)
    with torch.no_grad():
        expected = task.model(*given)
    torch.testing.assert_close(run(done, *given)["logits"], expected, rtol=1e-4, atol=1e-5)


def test_the_weights_are_those_of_the_record(classified: tuple[Classify, Exported]) -> None:
    task, done = classified
    given = tokens(2, 6, 4)
    with headwise.watch(task.model) as seen, torch.no_grad():
        task.model(*given)
    found = run(done, *given)
    for record in seen:
        weights = found[f"weights.{record.site.name}"]
        assert weights.shape == (2, 2, 6, 6)
        torch.testing.assert_close(weights, record.weights(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["op", "plain"])
def test_masks_are_kept_and_a_row_that_sees_nothing_gives_zero(form: str, tmp_path: Path) -> None:
    module = MultiHeadAttention(8, 2, bias=False)
    mask = masks.window(1, 0)
    done = export(module, out=tmp_path / "out", attention=form, mask=mask)
    assert done.manifest.graphs[0].opset == attention.OPSETS[form]
    nodes = {node.op_type for node in onnx.load(done.folder / "model.onnx").graph.node}
    assert ("Attention" in nodes) == (form == "op")
    hidden, padding = torch.randn(2, 7, 8), torch.ones(2, 7, dtype=torch.bool)
    padding[0, 2:5] = False  # queries 3 and 4 see keys 2 to 4 alone
    found = run(done, hidden, padding)["output"]
    torch.testing.assert_close(found, module(hidden, mask=mask, real=padding).detach(), rtol=1e-4, atol=1e-6)
    assert found[0, 3:5].eq(0).all()
    assert found.isfinite().all()


@pytest.mark.parametrize(
    "name",
    [  # a classifier and a forecaster are above and below; test_load.py writes texts by a translator
        *("latent", "causal"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("match", "answer", "masked", "forecast", "causal forecast", "translate")
        ),
    ],
)
def test_every_task_is_near_to_its_model(name: str, tmp_path: Path) -> None:
    task: Any = {
        "answer": tiny.answerer,
        "causal": tiny.causal,
        "translate": tiny.translator,
        "forecast": tiny.forecaster,
        "masked": tiny.masked,
        "latent": lambda: tiny.classifier("latent"),
        "causal forecast": lambda: tiny.forecaster("causal"),
        "match": tiny.matcher,
    }[name]()
    done = export(task, out=tmp_path / "out")
    differences = [each for graph in done.manifest.graphs for each in graph.differences]
    assert max(each.relative for each in differences) < 1e-5
    assert any("TensorRT was not run" in note or "TensorRT ran" in note for note in done.manifest.notes)


def product_weights(path: Path) -> dict[str, np.ndarray]:
    """The weights of each product of whole numbers in an ONNX file, by their names."""
    graph = onnx.load(path).graph
    held = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    return {node.input[1]: held[node.input[1]] for node in graph.node if node.op_type == "MatMulInteger"}


@pytest.mark.parametrize(("precision", "least", "most"), [("fp16", 1e-5, 0.05), ("int8", 1e-4, 0.5)])
def test_smaller_numbers_are_near_enough_and_take_less_room(
    precision: str, least: float, most: float, tmp_path: Path
) -> None:
    task = tiny.forecaster()
    done = export(task, out=tmp_path / "out", precision=precision, attention="plain", rows=tiny.SERIES)
    assert done.manifest.precision == precision
    (found,) = done.manifest.graphs[0].differences
    assert least < found.relative < most  # as near as float32 it would be float32
    assert found.typical < most / MEAN_SHARE * found.spread
    model = onnx.load(done.folder / "model.onnx")
    ends = [each.type.tensor_type.elem_type for each in (*model.graph.input, *model.graph.output)]
    assert set(ends) == {onnx.TensorProto.FLOAT}
    size = sum(len(each.raw_data) for each in model.graph.initializer)
    weights = sum(4 * parameter.numel() for parameter in task.parameters())
    assert size < 0.6 * weights


class Tied(torch.nn.Module):
    """A module whose table is also the weight of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.linear(self.mix(self.table(ids)), self.table.weight)


@pytest.mark.parametrize(
    "name", ["tied", *(pytest.param(name, marks=pytest.mark.slow) for name in ("causal", "latent", "match"))]
)
def test_int8_has_the_same_sums_on_every_processor(name: str, tmp_path: Path) -> None:
    """On x86 without VNNI the sum of two products has 16 bits: of an activation up to 255 and a weight, each."""
    makers: dict[str, Any] = {"causal": tiny.causal, "latent": lambda: tiny.classifier("latent"), "match": tiny.matcher}
    ids = [(torch.randint(50, size),) for size in ((2, 5), (3, 7))]
    subject = Tied() if name == "tied" else makers[name]()
    done = export(subject, out=tmp_path / "out", precision="int8", examples=ids if name == "tied" else ())
    for graph in done.manifest.graphs:
        weights = product_weights(done.folder / graph.file)
        assert weights
        for each in weights.values():
            assert each.dtype == np.int8
            assert 2 * 255 * int(np.abs(each.astype(int)).max()) < 2**15
            assert np.abs(each.astype(int)).max(0).min() == 64  # of each column: no bit is given away
        for found in graph.differences:
            assert found.relative < 0.5
            assert found.typical <= 0.5 / MEAN_SHARE * found.spread


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_file_of_other_weights_is_found_out(classified: tuple[Classify, Exported]) -> None:
    _, done = classified
    other = tiny.classifier()
    with torch.no_grad():
        other.model.head.bias[0] += 0.1
    (graph,) = make_graphs(other)
    file = dataclasses.replace(done.manifest.graphs[0], outputs=done.manifest.graphs[0].outputs)
    with pytest.raises(ExportError, match=r"model: output 'logits' differs .* expected at most 0\.0001"):
        compared(done.folder, file, graph, 1e-4)


def test_what_differs_by_more_than_is_tolerated_is_not_written(tmp_path: Path) -> None:
    inputs = [(torch.randn(2, 8),), (torch.randn(3, 8),)]
    with pytest.raises(ExportError, match="output 'output_0' differs from the model's by"):
        export(torch.nn.Linear(8, 8), out=tmp_path / "out", examples=inputs, tolerance=-1.0)  # less than nothing
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_an_error_that_names_it(classified: tuple[Classify, Exported], tmp_path: Path) -> None:
    task, done = classified
    (tmp_path / "model.onnx").write_bytes((done.folder / "model.onnx").read_bytes()[:-200])
    with pytest.raises(ExportError, match=r"model\.onnx"):
        compared(tmp_path, done.manifest.graphs[0], make_graphs(task)[0], 1e-4)


@pytest.mark.parametrize(("option", "said"), [("attention", "auto, op, plain"), ("precision", "fp32, fp16, int8")])
def test_words_that_there_are_none_of(option: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{option}: expected .*{said}.* Received: {option}='fast'"):
        export(tiny.forecaster(), out=tmp_path / "out", **{option: "fast"})


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ArgumentError, match=r"--to onnx needs the extra export\. Not installed: onnxscript"):
        export(tiny.forecaster(), out=tmp_path / "out")


# --- How attention is chosen ------------------------------------------------------------------------------------------


def test_auto_takes_the_operator_where_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention.wrong_with_op() is None, "ONNX Runtime computes the operator otherwise than PyTorch"
    form, said = attention.choose("auto")
    assert form == "op"
    assert "computes it correctly" in said
    monkeypatch.setattr(attention, "wrong_with_op", lambda: "computes something else for a bias")
    form, said = attention.choose("auto")
    assert form == "plain"
    assert said.endswith("computes something else for a bias.")


def test_a_runtime_that_lets_empty_rows_see_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention._run_op

    def wrong(arrays: list[Any], is_causal: bool) -> Any:
        out = right(arrays, is_causal)
        empty = len(arrays) == 4 and arrays[3].dtype == bool and not arrays[3].any(-1).all()
        return out + 1 if empty else out

    monkeypatch.setattr(attention, "_run_op", wrong)
    assert attention.wrong_with_op.__wrapped__() == "computes wrong results for a query that may attend to nothing"


class Placed(torch.nn.Module):
    """A module with 20 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.attention = torch.nn.Parameter(torch.randn(1, 20, 8)), MultiHeadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x + self.places[:, : x.shape[1]])


def test_the_longest_input_is_told_and_the_recipe_keeps_to_it(tmp_path: Path) -> None:
    done = export(Placed(), out=tmp_path / "out", examples=[(torch.randn(2, 5, 8),), (torch.randn(3, 6, 8),)])
    assert "The size of axis input_0_1 is at most 20." in done.manifest.notes
    assert "The size of axis input_0_1 is at most 20." in (done.folder / "card.md").read_text()
    assert re.search(r"--maxShapes=input_0:\d+x20x8 ", (done.folder / "tensorrt.sh").read_text())


# --- The recipe for TensorRT ------------------------------------------------------------------------------------------


def test_the_recipe_builds_for_every_open_axis(classified: tuple[Classify, Exported]) -> None:
    _, done = classified
    script = (done.folder / "tensorrt.sh").read_text()
    assert subprocess.run(["sh", "-n", done.folder / "tensorrt.sh"], check=False).returncode == 0
    assert "trtexec --onnx=model.onnx --saveEngine=model.plan" in script
    assert "--minShapes=input_ids:1x1,attention_mask:1x1,token_type_ids:1x1" in script
    assert "--maxShapes=input_ids:32x512,attention_mask:32x512,token_type_ids:32x512" in script


def test_the_recipe_runs_without_headwise_where_its_provider_is(classified: tuple[Classify, Exported]) -> None:
    _, done = classified
    program = done.folder / "run_tensorrt.py"
    found = subprocess.run(
        [sys.executable, "-I", program, "CPUExecutionProvider"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "model.onnx: " in found.stdout
    assert "largest difference from the CPU 0.00e+00" in found.stdout
    missing = subprocess.run([sys.executable, "-I", program, "NoProvider"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "has no NoProvider" in missing.stderr
