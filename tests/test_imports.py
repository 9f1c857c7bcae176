"""The import graph of the package: nothing imports upwards or in a circle, by string neither.

An edge is an import statement, wherever it stands, or a string that names a module. Between files what is imported for
types alone (`if TYPE_CHECKING:`) counts too, between folders it does not.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch

import headwise
from headwise import registry
from headwise.records import Seen

ROOT = Path(__file__).parents[1]
Graph = Mapping[str, set[str]]


@functools.cache
def modules(root: Path, package: str) -> dict[str, ast.Module]:
    found = {}
    for path in (root / package).rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@functools.cache
def import_graph(root: Path, package: str, *, types: bool = False) -> Graph:
    """module -> the modules of the package that it imports; with `types`, also those for types alone."""
    trees = modules(root, package)
    return {name: set(imported(tree, trees, types)) - {name} for name, tree in trees.items()}


def imported(tree: ast.Module, known: Mapping[str, Any], types: bool) -> Iterator[str]:
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")) if not types:
                stack += node.orelse
                continue
            case ast.Import(names):
                yield from (alias.name for alias in names if alias.name in known)
            case ast.ImportFrom(module, names, 0) if module in known:
                for alias in names:
                    name = f"{module}.{alias.name}"
                    yield name if name in known else module
            case ast.ImportFrom(level=level) if level:
                raise AssertionError("relative imports are not understood here")
            case ast.Constant(str(text)) if "." in text and text.partition(":")[0] in known:
                yield text.partition(":")[0]  # a module, or "module:function"
            case ast.JoinedStr([ast.Constant(str(text)), ast.FormattedValue()]) if (
                text[-1] == "." and text.count(".") > 1
            ):
                # One of the modules of a folder: which one is not known.
                yield from (name for name in known if name.rpartition(".")[0] == text[:-1])
        stack += ast.iter_child_nodes(node)


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            start = stack.index(name)
            component = sorted(stack[start:])
            del stack[start:]
            if len(component) > 1:
                found.append(component)

    for name in graph:
        if name not in index:
            visit(name)
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph(ROOT, "headwise")


def test_the_graph_has_imports_of_every_kind(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "a": "import p.b\nfrom p import c\nfrom p.d import anything",
        "b": "def f():\n    from p.c import x",
        "c": "TABLE = {'x': 'p.d:function', 'y': 'p', 'z': 'no module'}",
        "d": "if TYPE_CHECKING:\n    from p.a import T\nelse:\n    import p.e",
        "e": "import importlib\nimportlib.import_module(f'p.folder.{name}')\n'p.a, in a sentence'",
        "folder/__init__": "",
        "folder/one": "",
        "folder/two": "from p import a",
    }
    for name, text in files.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = import_graph(tmp_path, "p")
    assert found["p.a"] == {"p.b", "p.c", "p.d"}
    assert found["p.b"] == {"p.c"}
    assert found["p.c"] == {"p.d"}
    assert found["p.d"] == {"p.e"}
    assert found["p.e"] == {"p.folder.one", "p.folder.two"}
    assert circles(found) == [["p.a", "p.b", "p.c", "p.d", "p.e", "p.folder.two"]]
    assert import_graph(tmp_path, "p", types=True)["p.d"] == {"p.a", "p.e"}


def test_no_circle_across_folders(graph: Graph) -> None:
    def folder(name: str) -> str:
        return ".".join(name.split(".")[:2])

    folders: dict[str, set[str]] = {}
    for name, others in graph.items():
        folders.setdefault(folder(name), set()).update(folder(other) for other in others)
    assert circles({name: others - {name} for name, others in folders.items()}) == []


def test_no_circle_inside_a_folder(graph: Graph) -> None:
    assert circles(graph) == []


def test_no_circle_between_files() -> None:
    assert circles(import_graph(ROOT, "headwise", types=True)) == []  # imports for types count, too


def test_nothing_below_the_commands_and_the_server_imports_the_root(graph: Graph) -> None:
    """The root knows the upper layers, and registers them."""
    importing = {name.split(".")[1] for name, others in graph.items() if "headwise" in others and "." in name}
    assert importing <= {"cli", "server"}


# --- What the root registers ------------------------------------------------------------------------------------------


def test_a_record_in_a_notebook_finds_the_viewer_by_itself() -> None:
    program = (
        "import sys, torch\nfrom headwise.functional import attention\n"
        "record = attention(*torch.randn(3, 1, 2, 4, 8), record=True)[1]\n"
        "assert not any(name.startswith('headwise.viewer') for name in sys.modules)\n"
        "print(sorted(record._repr_mimebundle_()[0]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "text/html" in done.stdout


# It is public, and may be used where the rest is not installed.
CORE = ("masks", "tiles", "call", "options", "softmax", "kernels", "native", "records", "functional")

WITHOUT_THE_COMMAND = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rich", "click", "tokenizers", "huggingface_hub", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

import torch, headwise
from headwise import masks

for name in sys.argv[2:]:
    __import__(name)

q, k, v = torch.randn(3, 1, 2, 4, 8)
mask = masks.causal() & masks.window(2, 0)
out, record = headwise.attention(q, k, v, mask=mask, record=True)
print(headwise.plan(q, k, v, mask=mask))
print(repr(mask), mask.draw(4), mask._repr_html_()[:5])
seen = headwise.Seen([record])
seen.tokens = ["a", "b", "c", "d"]
print(seen.summary(), seen.coverage(), record.statistics("entropy"), sep="\\n")
seen.save(sys.argv[1])
assert torch.equal(headwise.load(sys.argv[1])[0].weights(), record.weights())
"""


def test_the_core_works_without_rich_click_tokenizers_and_the_hub(graph: Graph, tmp_path: Path) -> None:
    core = [name for name in graph if name.split(".")[1:2] and name.split(".")[1] in CORE]
    command = [sys.executable, "-c", WITHOUT_THE_COMMAND, tmp_path / "one.hw", *core]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "entropy" in done.stdout


def test_the_picture_of_the_layers_is_the_one_that_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    layers = [layer.replace("headwise.", "") for layer in contract["layers"]]
    _, _, after = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("**No imports upwards.**")
    picture = after.split("```text\n")[1].partition("```")[0].splitlines()
    assert [line.partition("  ")[0] for line in picture] == layers


class Toy:
    """A model of some other framework."""


class LargerToy(Toy):
    """The class of a framework's user."""


def test_models_of_a_framework_that_is_registered_are_watched_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    asked: list[Any] = []

    def watch(model: Any, **options: Any) -> Any:
        asked.append((model, options["only"], options["every"]))
        return seen

    toy = LargerToy()
    with pytest.raises(headwise.errors.DtypeError, match=r"expected a torch\.nn\.Module\. Received: LargerToy"):
        headwise.watch(toy)  # type: ignore[arg-type]
    monkeypatch.setitem(registry.frameworks, Toy.__module__.partition(".")[0], registry.Framework(watch, torch.nn.ReLU))
    assert headwise.watch(toy, only=-1, every=3) is seen  # type: ignore[arg-type, comparison-overlap]
    assert asked == [(toy, -1, 3)]
    assert registry.find_framework(torch.nn.Linear(1, 1)) is None
