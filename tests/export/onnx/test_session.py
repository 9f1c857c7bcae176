"""`Session`: a small graph on ONNX Runtime, and what is said where it cannot be."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.export.manifest import GraphFile
from headwise.export.onnx.session import Runtime, Session
from headwise.graphs.graph import Value

X, Y = (Value(name, torch.float32, ("batch", 2)) for name in "xy")
PLACES = Value("places", torch.int64, ("batch",))
SUM, TAKEN = (Value(name, torch.float32, ("batch", 2)) for name in ("sum", "taken"))
GRAPH = GraphFile("model", "small.onnx", (X, Y, PLACES), (SUM, TAKEN))
ARRAYS = {
    "x": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    "y": np.full((3, 2), 10, np.float32),
    "places": np.array([2, 0, 1]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a graph: sum = x + y; taken = rows of x, by their places."""
    found = tmp_path_factory.mktemp("small")
    x, y, total, taken = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y", "sum", "taken")
    )
    places = helper.make_tensor_value_info("places", TensorProto.INT64, ["batch"])
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Gather", ["x", "places"], ["taken"])]
    graph = helper.make_graph(nodes, "small", [x, y, places], [total, taken])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), found / "small.onnx")
    return found


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return Session(folder, GRAPH, Runtime(threads=1))


def test_named_arrays_give_named_arrays(session: Session) -> None:
    found = session.run(ARRAYS)
    assert list(found) == ["sum", "taken"]
    assert found["sum"].tolist() == [[11, 12], [13, 14], [15, 16]]
    assert found["taken"].tolist() == [[5, 6], [1, 2], [3, 4]]


def test_arrays_may_lie_in_memory_as_they_like(session: Session) -> None:
    backwards = {**ARRAYS, "x": np.asfortranarray(ARRAYS["x"])[::-1]}
    assert session.run(backwards)["taken"].tolist() == [[1, 2], [5, 6], [3, 4]]


def test_tensors_by_position_are_cast_and_give_the_outputs_that_are_asked_for(session: Session) -> None:
    (taken,) = session.giving("taken")(torch.tensor([[1, 2]]), torch.zeros(1, 2), torch.tensor([0], dtype=torch.int32))
    assert torch.equal(taken, torch.tensor([[1.0, 2.0]]))
    with pytest.raises(CheckpointError, match=r"small.onnx has no output 'mean', only sum, taken"):
        session.giving("mean")


@pytest.mark.parametrize("optimization", ["all", "extended", "basic", "none"])
def test_every_way_of_running_it_gives_the_same(folder: Path, optimization: str) -> None:
    runtime = Runtime(2, optimization, arena=False, spin=True)  # type: ignore[arg-type]
    assert Session(folder, GRAPH, runtime).run(ARRAYS)["sum"].tolist() == [[11, 12], [13, 14], [15, 16]]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"x": None}, ArgumentError, "expected the inputs x, y, places. Received: no 'x'"),
        ({"z": ARRAYS["x"]}, ArgumentError, "Received: 'z', which is unknown"),
        ({"x": ARRAYS["x"].astype(float)}, DtypeError, r"x: expected float32 .*Received: float64 \[3, 2\]"),
        ({"x": [[1.0, 2.0]]}, DtypeError, r"x: expected float32 \[batch, 2\]\. Received: list"),
        ({"x": ARRAYS["x"][:, :1]}, ShapeError, r"x: expected \[batch, 2\]\. Received: \[3, 1\]"),
        ({"x": ARRAYS["x"][0]}, ShapeError, r"x: expected \[batch, 2\]\. Received: \[2\]"),
        ({"y": ARRAYS["y"][:2]}, ShapeError, r"y: .* with batch = 3, as in x\. Received: \[2, 2\]"),
        ({"places": np.array([0, 1, 7])}, ArgumentError, r"small.onnx: ONNX Runtime cannot compute this: .*7"),
    ],
)  # fmt: skip
def test_what_it_cannot_take_is_said(session: Session, changed: dict, error: type[Exception], said: str) -> None:
    given = {name: value for name, value in {**ARRAYS, **changed}.items() if value is not None}
    with pytest.raises(error, match=said):
        session.run(given)
    assert session.run(ARRAYS)["sum"][0].tolist() == [11, 12]


def test_no_rows_give_no_rows(session: Session) -> None:
    assert session.run({name: array[:0] for name, array in ARRAYS.items()})["sum"].shape == (0, 2)


def test_it_is_pickled_without_its_threads(session: Session) -> None:
    assert pickle.loads(pickle.dumps(session)).run(ARRAYS)["sum"][0].tolist() == [11, 12]


def asked(session: Session, answers: multiprocessing.SimpleQueue) -> None:
    try:
        answers.put(session.run(ARRAYS)["sum"].tolist())
    except ArgumentError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_is_told_so_and_does_not_hang(session: Session) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=asked, args=(session, answers), daemon=True)
    process.start()
    process.join(60)
    assert not process.is_alive()
    assert "Start processes by spawn" in answers.get()


def test_a_file_that_is_missing_or_damaged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"small.onnx is missing, although export.json lists it"):
        Session(tmp_path, GRAPH)
    whole = (folder / "small.onnx").read_bytes()
    (tmp_path / "small.onnx").write_bytes(whole[:-40])
    with pytest.raises(CheckpointError, match=r"cannot load .*small.onnx into ONNX Runtime .*damaged"):
        Session(tmp_path, GRAPH)


def test_a_file_that_is_not_what_the_manifest_says(folder: Path) -> None:
    other = replace(GRAPH, inputs=(X, Y))
    with pytest.raises(CheckpointError, match=r"among its inputs, 'places' is tensor\(int64\), expected no such name"):
        Session(folder, other)
    other = replace(GRAPH, outputs=(replace(SUM, dtype=torch.float16), TAKEN))
    with pytest.raises(CheckpointError, match=r"among its outputs, 'sum' is tensor\(float\)"):
        Session(folder, other)


def test_what_onnx_runtime_has_not_got(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"providers: expected .*CPUExecutionProvider. Received: Abacus"):
        Session(folder, GRAPH, Runtime(providers=("Abacus",)))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ArgumentError, match="needs the extra export"):
        Session(folder, GRAPH)


def test_ways_of_running_that_there_are_none_of() -> None:
    with pytest.raises(ArgumentError, match=r"threads: expected a positive integer or None\. Received: threads=0"):
        Runtime(threads=0)
    with pytest.raises(ArgumentError, match=r"optimization: expected all, extended"):
        Runtime(optimization="most")  # type: ignore[arg-type]
