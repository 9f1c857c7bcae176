"""`--to torch`: the folder, what it says of itself, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.errors import ArgumentError, ExportError
from headwise.export.exporting import export
from headwise.export.torch import export as module
from headwise.export.torch import programs


def test_a_checkpoint_becomes_a_program_that_its_card_can_call(tiny_bert: Path, tmp_path: Path) -> None:
    found = export(tiny_bert, "torch", tmp_path / "out", aoti=False)
    assert {"model.pt2", "card.md", "export.json", "checksums.json", "tokenizer.json"} == set(found.files)
    manifest = found.manifest
    assert (manifest.kind, manifest.task, manifest.precision) == ("torch", "tensors", "fp32")
    (graph,) = manifest.graphs
    assert all(each.relative <= 1e-4 for each in graph.differences)
    assert "AOTInductor packages were not requested." in manifest.notes
    assert "The size of axis length is at most 32." in manifest.notes
    card = (found.folder / "card.md").read_text(encoding="utf-8")
    assert "| graph | batch | first input | PyTorch | torch.export |" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code = f"import sys; sys.modules['headwise'] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=found.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([1")


def test_without_a_compiler_it_says_so_and_refuses_only_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "compiler", lambda: None)
    assert module._whether(None) == (
        False,
        "No AOTInductor package was made: no C++ compiler was found (g++, or the value of CXX).",
    )
    with pytest.raises(ArgumentError, match=r"aoti: AOTInductor needs a C\+\+ compiler, but none was found"):
        module._whether(True)


def test_a_program_that_computes_something_else_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    examples = [(torch.randn(2, 3),), (torch.randn(4, 3),)]
    wrong = [[(each * 1.01,) for (each,) in examples]]
    monkeypatch.setattr(module.programs, "run_alone", lambda files: wrong)
    with pytest.raises(ExportError, match=r"^model.pt2: output .* differs from the model's by .*: expected at most"):
        export(nn.Identity(), "torch", tmp_path / "out", examples=examples, aoti=False, speed=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "said"), [("int8", "int8 is available for onnx$"), ("fp8", "precision='fp8'$")])
def test_precisions_that_there_are_none_of(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        export(nn.Linear(2, 2), "torch", tmp_path / "out", precision=given)
