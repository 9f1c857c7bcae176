"""A task that another runtime answers for predicts, writes and scores as it does in PyTorch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError, CheckpointError, RecordError
from headwise.export.exporting import export
from headwise.export.load import load, load_tensors
from headwise.export.onnx.session import Runtime
from headwise.files import SUMS
from headwise.graphs.session import Sessions
from headwise.tasks.task import Task
from tests.export import tiny
from tests.export.modules import run_by_modules
from tests.tasks import problems

SQUAD = problems.squad(problems.spans(6, seed=1))
PICTURES = problems.coloured_patches(4, seed=1)
INPUTS: dict[str, tuple[Any, Any]] = {  # what is predicted, and what is scored
    "classifier": (["antx bee cat", "dog", "a"], problems.marked(10, seed=1)),
    "answerer": ([{"question": "fox", "context": "ant bee fox"}], SQUAD),
    "masked": (["ant [MASK] bee", "[MASK]"], problems.twice(6, seed=1)),
    "causal": (["ant bee", "a", "cat"], problems.twice(6, seed=1)),
    "forecaster": (tiny.SERIES, tiny.SERIES),
    "matcher": (["red at 1", PICTURES[0][0]], dict(zip(("image", "text"), PICTURES, strict=False))),
    "translator": (["ant bee", "cat dog elk fox", "a"], problems.copied(6, seed=1)),
}


def same(found: Any, expected: Any) -> None:
    """Numbers nearly, all else exactly."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, rel=1e-4, abs=1e-4) if isinstance(value, float) else value)


@pytest.mark.parametrize("name", INPUTS)
def test_every_task_asks_its_graphs_for_all_that_its_weights_decide(name: str) -> None:
    """Its weights are NaN: whatever was computed with them would be, too."""
    task = getattr(tiny, name)()
    other = run_by_modules(task)
    inputs, rows = INPUTS[name]
    same(other.predict(inputs), task.predict(inputs))
    same([other.evaluate(rows).values], [task.evaluate(rows).values])
    examples = task.encode(task.read(rows, task.options))
    assert other.mean_loss(examples) == pytest.approx(task.mean_loss(examples), rel=1e-3)


@pytest.mark.parametrize("options", [{"copies": True}, {"shared_vocabulary": False, "positions": "learned"}], ids=str)
@pytest.mark.parametrize("how", [{"beams": 1}, {"beams": 3}, {"beams": 1, "sample": True}], ids=str)
def test_texts_are_written_alike_however_they_are_decoded(options: dict[str, Any], how: dict[str, Any]) -> None:
    task = tiny.made(tiny.Translate, problems.copied(40), source="source", target="target", **tiny.SMALL, **options)
    task.options = replace(task.options, **how)
    other = run_by_modules(task)
    sources = ["ant bee", "cat dog elk fox", "hen"]
    same(other.predict(sources), task.predict(sources))
    for source in sources:
        assert "".join(other.stream(source)) == task.predict([source])[0]["translation"]


def test_a_graph_that_the_task_needs_is_not_there() -> None:
    task = tiny.translator()
    with pytest.raises(CheckpointError, match="lacks the graph 'encoder', which its task needs: it has no graph"):
        task.run_on(Sessions())


# --- The folder of an export ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task[Any], Path]:
    task = tiny.translator()
    return task, export(task, "onnx", tmp_path_factory.mktemp("translator") / "export", speed=False).folder


def test_onnx_runtime_writes_what_pytorch_writes(translator: tuple[Task[Any], Path]) -> None:
    task, folder = translator
    inputs, rows = INPUTS["translator"]
    found: Any = load(folder, Runtime(threads=1))
    same(found.predict(inputs), task.predict(inputs))
    same([found.evaluate(rows).values], [task.evaluate(rows).values])
    assert found.mean_loss(found.encode(found.read(rows, found.options))) == pytest.approx(
        task.mean_loss(task.encode(task.read(rows, task.options))), rel=1e-4
    )
    for text in inputs:
        assert "".join(found.stream(text)) == task.predict([text])[0]["translation"]
    with pytest.raises(RecordError, match="look: ONNX Runtime cannot record"):
        found.look(inputs)


def test_the_weights_are_not_in_memory_a_second_time(translator: tuple[Task[Any], Path]) -> None:
    found = load(translator[1])
    assert all(each.untyped_storage().nbytes() <= 8 for each in found.parameters())
    assert all(each.isnan().all() for each in found.parameters())


def test_making_a_task_without_weights_leaves_modules_as_they_are_made_else(translator: tuple[Task[Any], Path]) -> None:
    load(translator[1])
    assert torch.nn.Linear(2, 2).weight.isfinite().all()


def test_a_graph_of_it_is_a_function_of_arrays(translator: tuple[Task[Any], Path]) -> None:
    task, folder = translator
    session = load_tensors(folder, graph="encoder")
    ids = np.array([[1, 5, 2]])
    found = session.run({"source_ids": ids, "source_real": np.ones((1, 3), bool)})
    memory = task.model.encode(torch.from_numpy(ids))
    keys, _ = task.model.decoder.layers[0].cross_attention.project(memory, "kv")
    np.testing.assert_allclose(found["cross_keys_0"], keys.detach().numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"has the graphs encoder, decoder. Choose one with graph="):
        load_tensors(folder)
    with pytest.raises(ArgumentError, match=r"export has encoder, decoder. Received: graph='model'"):
        load_tensors(folder, graph="model")


def damaged(folder: Path, tmp_path: Path, change: Callable[[Path], object]) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / SUMS).unlink()
    change(copy)
    return copy


def manifest_with(**changed: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "export.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda folder: (folder / "decoder.onnx").unlink(), CheckpointError, "decoder.onnx is missing"),
        (lambda folder: (folder / "decoder.onnx").write_bytes(b"no"), CheckpointError, "cannot load .*decoder.onnx"),
        (lambda folder: (folder / "config.yaml").unlink(), CheckpointError, "config.yaml is missing, although"),
        (lambda folder: (folder / "tokenizer.json").unlink(), CheckpointError, "tokenizer.json"),
        (lambda folder: (folder / "export.json").write_text("{"), CheckpointError, "cannot read .*export.json"),
        (lambda folder: (folder / "export.json").unlink(), ArgumentError, "is a run folder, not an export"),
        (manifest_with(kind="savedmodel"), ArgumentError, "expected an export of the kind 'onnx'"),
        (manifest_with(task="tensors"), ArgumentError, "is the export of a module"),
        (manifest_with(task="reply"), CheckpointError, "Received: 'reply' in export.json"),
        (manifest_with(graphs=[]), CheckpointError, "lists no graph"),
        (manifest_with(kind=3), CheckpointError, "cannot read .*export.json: TypeError"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_in_one_sentence(
    translator: tuple[Task[Any], Path], tmp_path: Path, change: Callable[[Path], object], error: Any, said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        load(damaged(translator[1], tmp_path, change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["export.json", "encoder.onnx", "config.yaml", "tokenizer.json"])
def test_a_file_with_a_flipped_byte_is_named(translator: tuple[Task[Any], Path], tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(translator[1], tmp_path / "copy"))
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    for read in (load, lambda folder: load_tensors(folder, graph="decoder")):
        with pytest.raises(CheckpointError, match=name):
            read(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not an export: it is not a folder"):
        load(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"is not an export: it has no export.json"):
        load_tensors(tmp_path)
