"""`headwise export`: what it prints, and what it says of options and inputs that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Run


def test_it_prints_a_table_and_writes_a_card(run: Run, reviews_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "rows.csv").write_text("sentence\na good film\na bad film\n", encoding="utf-8")
    found = run("export", reviews_run, "--to", "onnx", "--out", "out", "--examples", "rows.csv", "--no-speed")
    assert found.code == 0, found.err
    assert f"{reviews_run} as onnx fp32" in " ".join(found.out.split())
    assert "model.onnx" in found.out
    assert "note: TensorRT was not run" in found.out
    assert "note: No real inputs" not in found.out
    assert "out/card.md for how to call it." in found.out
    card = Path("out/card.md").read_text(encoding="utf-8")
    for part in ("# classify: reviews", "## Data", "## Scores", "2,8", "| `model.onnx` | logits |", "Not measured."):
        assert part in card


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "--to", "onnx"), "nowhere"),
        (("RUN", "--to", "savedmodel", "--precision", "int8"), "expected one of fp32 for savedmodel"),
        (("RUN", "--to", "torch", "--attention", "plain"), "attention: this is an option of onnx"),
        (("RUN", "--to", "onnx", "--aoti"), "aoti: this is an option of torch, not of onnx"),
        (("RUN", "--to", "onnx", "--precision", "bf16"), "expected one of fp32, fp16, int8 for onnx"),
        (("RUN", "--to", "torch", "--precision", "int8"), "int8 is available for onnx"),
        (("RUN", "--to", "onnx", "--examples", "none.csv"), "--examples none.csv: no such file or directory"),
        (("RUN", "--to", "onnx", "--tolerance", "0"), "Invalid value for '--tolerance'"),
        (("missing.py:Model", "--to", "onnx"), "no such file: missing.py"),
        (("model.pt", "--to", "onnx"), "model.pt is a file. Expected a run folder"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    arguments: tuple[str, ...], said: str, run: Run, reviews_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    found = run("export", *(reviews_run if each == "RUN" else each for each in arguments), "--out", "out")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert said in found.err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(run: Run, reviews_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/diary.txt").write_text("mine", encoding="utf-8")
    found = run("export", reviews_run, "--to", "onnx", "--out", "out")
    assert found.code == 2
    assert "out is not empty and not an export that could be replaced" in found.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["diary.txt"]


def test_a_module_of_a_file_is_traced_with_examples(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    code = "import torch\n\nclass Double(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    torch.save([(torch.randn(2, 3),), (torch.randn(5, 3),)], tmp_path / "inputs.pt")
    given = ("export", "mine.py:Double", "--to", "onnx", "--out", "out", "--no-speed")
    found = run(*given, "--examples", "inputs.pt")
    assert found.code == 0, found.err
    torch.save({"x": 1}, tmp_path / "inputs.pt")
    found = run(*given, "--examples", "inputs.pt")
    assert found.code == 2
    assert "expected a list of tuples of tensors" in found.err
    assert "the inputs of a Double are unknown. Pass examples=" in run(*given).err
