"""The blind sets of benchmarks/blind: each answer is of a file that is there, and a file is scored as it says."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BLIND = Path(__file__).parents[1] / "benchmarks" / "blind"
SETS = sorted(path.parent.name for path in BLIND.glob("*/answers.csv"))


@pytest.fixture(scope="module")
def blind() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blind", BLIND / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["blind"] = module  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SETS)
def test_the_answers_of_a_set(blind: ModuleType, name: str) -> None:
    cases = blind.cases([name], [])
    assert (len(cases), sum(case.broken for case in cases)) == ((40, 0) if name.startswith("healthy") else (50, 30))
    assert {case.file for case in cases} == {path.name for path in (BLIND / name).glob("*.py")}
    for case in cases:
        body = ast.parse((BLIND / name / case.file).read_text(encoding="utf-8")).body
        assert case.kind in {x.name for x in body if isinstance(x, ast.ClassDef)}, case


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_broken_and_a_healthy_file() -> None:
    ran = subprocess.run(
        [sys.executable, BLIND, "usual_8", "--only", "08", "19"], capture_output=True, text=True, check=True
    )
    said = "1 of 1 named (100%), 1 with risks; 0 of 1 with a false bug"
    lines = ran.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"usual_8: {said}", f"all: {said}")
