"""The layers of pyproject.toml name every module, so that none escapes the check that scripts/test runs on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_stands_in_a_layer() -> None:
    # No TOML reader in the standard library of Python 3.10: the list is read as text.
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contract = pyproject[pyproject.index("[[tool.importlinter.contracts]]") :]
    listed = set(re.findall(r"headwise\.(\w+)", contract))
    paths = (ROOT / "headwise").iterdir()
    there = {path.stem for path in paths if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))}
    assert there - {"__init__", "__main__"} == listed


def test_what_trains_is_imported_by_tasks_alone() -> None:
    fenced = re.compile(
        r"^\s*(?:import|from) (pytorch_lightning|lightning\w*|datasets|torchmetrics|sacrebleu)\b", re.MULTILINE
    )
    outside = {
        f"{path.relative_to(ROOT)} imports {found[1]}"
        for path in (ROOT / "headwise").rglob("*.py")
        if "tasks" not in path.relative_to(ROOT).parts
        for found in fenced.finditer(path.read_text(encoding="utf-8"))
    }
    assert outside == set()
