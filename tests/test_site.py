"""The site of the documents: nothing public is left out, and its parts know of one another. scripts/docs builds it."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import headwise

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> object:
    """A module of docs/site, as mkdocs loads it."""
    monkeypatch.syspath_prepend(str(SITE))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


# Public names that are modules: their own names have pages.
MODULES = headwise._MODULES | {"headwise.nn.positions", "headwise.keras.positions"}


def public_names() -> Iterator[str]:
    """What every `__all__` holds. Read, not imported: Keras and others take seconds."""
    for path in [*ROOT.glob("headwise/**/__init__.py"), ROOT / "headwise" / "testing.py"]:
        package = ".".join(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                literal = isinstance(node.value, ast.List)
                names = ast.literal_eval(node.value) if literal else importlib.import_module(package).__all__
                yield from {f"{package}.{name}" for name in names} - MODULES - {"headwise.__version__"}


def test_every_public_name_is_in_the_reference(load) -> None:
    reference = load("reference")
    shown = {reference.home(name) for group in reference.GROUPS for name in group.all_names()}
    found = list(public_names())
    assert len(found) > 200
    assert [name for name in found if reference.home(name) not in shown] == []
    assert (
        reference.home("headwise.watch") == reference.home("headwise.capture.watch") == "headwise.capture.context.watch"
    )


def test_what_the_reference_shows_is_there_and_documented(load) -> None:
    reference = load("reference")
    for name in sorted({reference.home(name) for group in reference.GROUPS for name in group.all_names()}):
        module, _, last = name.rpartition(".")
        made = {ast.unparse(target): node for node in reference._tree(module).body for target in targets(node)}
        assert last in made, name
        assert not isinstance(made[last], (ast.ClassDef, ast.FunctionDef)) or ast.get_docstring(made[last]), name


def targets(node: ast.stmt) -> list[ast.expr]:
    """The names that a statement makes."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [ast.Name(node.name)]
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def test_a_public_name_without_a_page_would_be_found(load, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load("reference")
    monkeypatch.setattr(reference, "GROUPS", [group for group in reference.GROUPS if group.slug != "edits"])
    with pytest.raises(AssertionError, match=r"headwise\.edit"):
        test_every_public_name_is_in_the_reference(load)


def test_every_command_and_option_is_on_its_page(load) -> None:
    page = load("commands").command_page()
    for name in ("view", "watch", "doctor", "train classify", "export", "serve"):
        assert f"\n## headwise {name}\n" in page
    assert "| `--statistics-only` |" in page
    assert "| `--attention FILE.PY:CLASS(ARGUMENTS)` |" in load("commands").plugin_page()


def test_every_document_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- (?:\S+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    written = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    pages = {"index.md", "zh.md", "changelog.md", "contributing.md", "examples/index.md"}  # of other folders
    programs = {f"examples/{path.stem}.md" for suffix in ("py", "ipynb") for path in ROOT.glob(f"examples/*.{suffix}")}
    assert len(listed) == len(set(listed))
    assert set(listed) == written | pages | programs


def test_every_guide_is_in_llms_txt() -> None:
    listed = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8"))
    assert {path.name for path in ROOT.glob("docs/*.md")} <= set(listed)


def test_the_gallery_shows_each_page_that_is_made() -> None:
    marked = re.findall(
        r"^<!-- live: ([\w-]+)", (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    tree = ast.parse((SITE / "gallery.py").read_text(encoding="utf-8"))
    (made,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PAGES"
    ]
    assert marked == [ast.unparse(each) for each in made.elts]


def test_a_notebook_becomes_a_page_with_its_outputs(load) -> None:
    png = {"output_type": "display_data", "data": {"image/png": "aGVhZA==", "text/plain": "<Figure>"}}
    rich = {"output_type": "display_data", "data": {"text/html": "<pre>red</pre>", "text/plain": "red\n"}}
    page_html = {
        "output_type": "execute_result",
        "data": {"text/html": ["<script>", "</script>"], "text/plain": "Seen"},
    }
    stream = {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]}
    book = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title"]},
            {"cell_type": "code", "source": ["print(1)"], "outputs": [stream, rich, png, page_html]},
        ]
    }
    text, files = load("notebooks").page(json.loads(json.dumps(book)), "book")
    assert text == (
        "# Title\n\n```python\nprint(1)\n```\n\n```{.text .output}\none\ntwo\nred\n```\n\n"
        "![What the cell shows](book-0.png)\n\n"
        '<iframe class="live" loading="lazy" src="book-1.html" title="What the cell shows"></iframe>\n'
    )
    assert files == {"book-0.png": b"head", "book-1.html": b"<script></script>"}


def test_a_notebook_whose_cell_failed_is_refused(load) -> None:
    failed = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    book = {"cells": [{"cell_type": "code", "source": "f()", "outputs": [failed]}]}
    with pytest.raises(ValueError, match="a cell ended with ValueError: no"):
        load("notebooks").page(book, "book")


def test_a_line_of_chinese_ends_without_a_space(load) -> None:
    text = "权重是\n编辑之后的，\n  **整行**。\n- 一项\n\n新的一段，\nPython 的\nA line\nof English"
    assert load("prose").adapt(text) == (
        "权重是编辑之后的，**整行**。\n- 一项\n\n新的一段，Python 的\nA line\nof English"
    )


def test_a_stroke_in_code_of_a_table_is_shown_as_one(load) -> None:
    assert (
        load("prose").adapt(r"| `&`, `\|` | not in code: \| | `a \| b` |")
        == r"| `&`, `|` | not in code: \| | `a | b` |"
    )


def test_nothing_is_fetched_from_a_network() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    for file in (*SITE.glob("*.js"), *SITE.glob("*.css")):
        code = re.sub(r"/\*.*?\*/", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "//" not in code.replace("://", "//") or "http" not in code
