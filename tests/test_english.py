"""The English of the package: each docstring names its noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "headwise"
NO_NOUN = re.compile(r"(That of|Those)\b")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file, including those of attributes, each with its line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.lstrip()


def test_no_docstring_begins_with_a_pronoun_in_place_of_its_noun() -> None:
    """Outside of the doctor, whose docstrings are still to be rewritten."""
    files = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "doctor")]
    found = [f"{path}:{line}: {text[:60]}" for path in files for line, text in docstrings(path) if NO_NOUN.match(text)]
    assert files
    assert not found
