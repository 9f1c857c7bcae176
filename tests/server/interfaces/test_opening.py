"""What a folder is: runs, ONNX exports and checkpoints are opened; of all else it is said what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise import tasks
from headwise.errors import ArgumentError, CheckpointError, HeadwiseError
from headwise.export.exporting import export
from headwise.models import Bert
from headwise.server.interfaces import open_interface
from headwise.server.interfaces import precision as precisions
from tests.server.interfaces.conftest import asked
from tests.tasks.problems import looked_up

RunOf = Callable[[str], Path]


# --- ONNX -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of pairs."""
    out = tmp_path_factory.mktemp("exported") / "onnx"
    export(tasks.load(bert_run), "onnx", out, speed=False)
    return out


def test_an_onnx_export_of_a_run_answers_as_the_run_does(exported: Path, bert_run: Path) -> None:
    torch_run, on_onnx = open_interface(bert_run), open_interface(exported, threads=1)
    assert on_onnx.description.platform == "headwise_onnx"
    assert on_onnx.description.inputs == torch_run.description.inputs
    assert on_onnx.description.outputs == torch_run.description.outputs
    given = looked_up(6, seed=1)
    rows = [
        {"text": first, "text_pair": second} for first, second in zip(given["text"], given["question"], strict=True)
    ]
    for row, expected in zip(asked(on_onnx, rows), asked(torch_run, rows), strict=True):
        assert row["label"] == expected["label"]
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-4)
    with pytest.raises(ArgumentError):
        on_onnx.read({"text": "", "text_pair": "ant"})
    assert on_onnx.read(rows[0]).pieces == torch_run.read(rows[0]).pieces


def test_an_onnx_export_explains_nothing(exported: Path) -> None:
    interface = open_interface(exported, backend="onnx")
    assert not interface.description.explains
    for ask in (interface.explain, interface.page):
        with pytest.raises(HeadwiseError, match="backend torch"):
            ask(interface.read(interface.description.example or {}))


def test_an_export_is_served_by_the_backend_and_in_the_precision_that_it_has(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is an ONNX export\. Choose backend onnx"):
        open_interface(exported, backend="torch")
    with pytest.raises(ArgumentError, match=r"was exported in fp32. Received: 'int8'.*--precision int8"):
        open_interface(exported, backend="onnx", precision="int8")
    other = tmp_path / "other"
    other.mkdir()
    told = json.loads((exported / "export.json").read_text())
    (other / "export.json").write_text(json.dumps({**told, "kind": "savedmodel"}))
    with pytest.raises(CheckpointError, match="is an export to savedmodel, but headwise serve needs an ONNX export"):
        open_interface(other, backend="onnx")
    (other / "export.json").write_text(json.dumps({**told, "task": "tensors", "graphs": told["graphs"] * 2}))
    with pytest.raises(CheckpointError, match=r"expected one graph\. Received: model, model"):
        open_interface(other, backend="onnx")


# --- A checkpoint, and its export -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(run_of: RunOf) -> Path:
    folder = run_of("masked") / "checkpoint"
    tasks.load(run_of("masked")).save_pretrained(folder)
    return folder


def test_a_bert_gives_hidden_states_and_their_mean(checkpoint: Path) -> None:
    interface = open_interface(checkpoint)
    told = interface.description
    assert (told.task, told.platform) == ("tensors", "headwise_torch")
    bert = Bert.from_pretrained(checkpoint)
    first, second = np.array([2, 7, 9, 3]), np.array([2, 8, 3, 0, 0])
    rows = [
        {"input_ids": first, "token_type_ids": np.array([0, 0, 1, 1])},
        {"input_ids": second, "attention_mask": np.array([1, 1, 1, 0, 0])},
    ]
    whole, padded = asked(interface, rows)
    with torch.no_grad():
        expected = bert(torch.tensor(first)[None], None, torch.tensor([[0, 0, 1, 1]]))[0].numpy()
        shorter = bert(torch.tensor(second[:3])[None])[0].numpy()
    assert whole["last_hidden_state"] == pytest.approx(expected, abs=1e-5)
    assert whole["embedding"] == pytest.approx(expected.mean(0), abs=1e-5)
    assert padded["last_hidden_state"][:3] == pytest.approx(shorter, abs=1e-5)
    assert not padded["last_hidden_state"][3:].any()
    assert padded["embedding"] == pytest.approx(shorter.mean(0), abs=1e-5)
    assert interface.tokens(interface.read(rows[1])) == 5
    shown = interface.explain(interface.read(told.example or {}))["inputs"][0]["stacks"][0]
    assert shown["rows"][0] == "[CLS]"
    assert 'id="facts"' in interface.page(interface.read(told.example or {}))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"input_ids": np.array([0, 10**6])}, "input_ids: expected numbers from 0 to .* Received: 1000000"),
        ({"input_ids": np.array([2, -1])}, "Received: -1"),
        ({"input_ids": np.array([2.5])}, "expected INT64. Received: float64"),
        ({"input_ids": np.zeros(0, np.int64)}, "Received: \\[0\\]"),
        ({"input_ids": np.zeros((1, 2), np.int64)}, r"Received: \[1, 2\]"),
        ({"input_ids": np.full(17, 2)}, "expected at most 16 tokens. Received: 17"),
        ({"input_ids": np.array([2, 3]), "attention_mask": np.array([1])}, "attention_mask: expected 2 numbers"),
        ({"input_ids": np.array([2, 3]), "attention_mask": np.array([0, 1])}, "then only 0 .padding"),
        ({"input_ids": np.array([2, 3]), "attention_mask": np.array([2, 0])}, "then only 0 .padding"),
        ({"input_ids": np.array([2, 3]), "attention_mask": np.array([0, 0])}, "one or more 1"),
        ({"input_ids": np.array([2, 3]), "token_type_ids": np.array([0, 2])}, "token_type_ids: expected numbers"),
    ],
)
def test_ids_that_cannot_be_read(checkpoint: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(HeadwiseError, match=says):
        open_interface(checkpoint).read(row)


def test_a_module_that_was_exported_takes_and_gives_its_tensors(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.cumsum(1) * y[:, None], y + 1

    calls = [(torch.rand(batch, length), torch.rand(batch)) for batch, length in ((2, 3), (3, 5), (4, 6))]
    export(Two(), "onnx", tmp_path / "two", examples=calls, speed=False)
    interface = open_interface(tmp_path / "two", backend="onnx", threads=1)
    told = interface.description
    assert (told.task, told.platform, told.explains) == ("tensors", "headwise_onnx", False)
    assert [(column.datatype, column.shape) for column in told.inputs] == [("FP32", (-1,)), ("FP32", ())]
    asked(interface, [told.example or {}])
    rows = [
        {"input_0": np.array([1, 2], np.float32), "input_1": 2.0},
        {"input_0": np.array([1, 2, 3], np.float32), "input_1": 3.0},
        {"input_0": np.array([3, 4], np.float32), "input_1": 1.0},
    ]
    first, second, third = asked(interface, rows)
    assert first["output_0"].tolist() == [2, 6]
    assert second["output_0"].tolist() == [3, 9, 18]
    assert (third["output_0"].tolist(), third["output_1"]) == ([3, 7], 2.0)
    with pytest.raises(HeadwiseError, match=r"input_0: expected \[-1\]"):
        interface.read({"input_0": np.ones((2, 2), np.float32), "input_1": 1.0})
    with pytest.raises(HeadwiseError, match="input_0: this column is missing"):
        interface.read({"input_1": 1.0})
    assert interface.tokens(interface.read(rows[1])) == 3


# --- Nothing that can be served ---------------------------------------------------------------------------------------


def test_what_cannot_be_served_says_why(tmp_path: Path, run_of: RunOf) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be served: expected a run folder .*export.json"):
        open_interface(tmp_path)
    with pytest.raises(CheckpointError, match="no folder"):
        open_interface(tmp_path / "none")

    run = run_of("classify")
    with pytest.raises(CheckpointError, match=f"headwise export {run} --to onnx --out DIR"):
        open_interface(run, backend="onnx")

    (tmp_path / "config.yaml").write_text((run_of("classify") / "config.yaml").read_text())
    with pytest.raises(CheckpointError, match=r"no weights\.safetensors"):
        open_interface(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "tensorrt"}, "backend: expected one of auto, torch, onnx. Received: backend='tensorrt'"),
        ({"threads": -1}, "threads: expected 0 .* or more. Received: threads=-1"),
        ({"precision": "fp8"}, "precision: expected one of fp32, bf16, int8. Received: precision='fp8'"),
        ({"precision": "int8"}, "ONNX Runtime supports int8: headwise export RUN --to onnx --precision int8"),
    ],
)
def test_options_that_there_are_none_of(run_of: RunOf, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        open_interface(run_of("classify"), **options)


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


def test_bfloat16_is_refused_where_it_cannot_be_had(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "has_bfloat16", lambda: False)
    with pytest.raises(ArgumentError, match="this processor has no instructions for bf16"):
        open_interface(run_of("classify"), precision="bf16")

    monkeypatch.setattr(precisions, "has_bfloat16", lambda: True)
    with pytest.raises(ArgumentError, match="translate generates token by token"):
        open_interface(run_of("translate"), precision="bf16")


def test_bfloat16_answers_about_as_float32_does_or_is_refused(bert_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "has_bfloat16", lambda: True)
    given = [{"text": "ant red bee blue", "text_pair": "ant"}, {"text": "bee red", "text_pair": "bee"}]
    exact, rounded = (asked(open_interface(bert_run, precision=each), given) for each in ("fp32", "bf16"))
    for row, expected in zip(rounded, exact, strict=True):
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=0.02)
        assert not np.array_equal(row["probabilities"], expected["probabilities"])
        assert row["probabilities"].dtype == np.float32

    monkeypatch.setattr(precisions, "has_bfloat16", lambda: True)
    monkeypatch.setattr(precisions, "TOLERANCE", 0.0)
    with pytest.raises(ArgumentError, match=r"precision: in bf16, probability differs by .*%"):
        open_interface(bert_run, precision="bf16")
