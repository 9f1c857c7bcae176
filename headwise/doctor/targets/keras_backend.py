"""The backend of Keras that a file is written for. It is chosen before the import, which fixes it for the process.

begin_backend(Path("my_layers.py"))      # tensorflow, if the file imports tensorflow
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "KERAS_BACKEND"
BACKENDS = ("tensorflow", "jax", "torch")  # the order in which a file that imports several is read, and of the default


def begin_backend(file: Path | None) -> None:
    """Import Keras on the backend of this file; do nothing if the file does not use Keras, or Keras is imported."""
    if file is None or "keras" in sys.modules:
        return
    backend = backend_of(file)
    if backend is None:
        return
    os.environ.setdefault(VARIABLE, backend)
    with contextlib.suppress(ImportError):  # the import of the file says what is missing
        importlib.import_module("keras")


def backend_of(file: Path) -> str | None:
    """The backend for a file, without running it; None if neither it nor a file that it imports uses Keras.

    The environment decides, then the file: the backend that it sets, or that it imports, directly or through its
    neighbours. One that uses keras alone runs on each of them: on PyTorch its operations can be read.
    """
    imported: list[str] = []
    stated: list[str] = []
    for node in _nodes(file, set()):
        imported += (name.partition(".")[0] for name in _imported(node))
        stated += _stated(node)
    if not {"keras", "tensorflow"} & set(imported):
        return None
    return next(filter(None, (os.environ.get(VARIABLE), *stated, *(x for x in BACKENDS if x in imported))), "torch")


def default_timeout(file: Path | None = None) -> float:
    """Seconds for a diagnosis if nothing else is said: more on JAX, which compiles each shape that is tried.

    `file` is that of the class; None: of a model that is loaded already.
    """
    loaded = sys.modules.get("keras")
    backend = loaded.backend.backend() if loaded is not None else None if file is None else backend_of(file)
    return 60.0 if backend != "jax" else 300.0


def begin_backend_of_saved(path: Path) -> None:
    """Import Keras on the backend for a saved model: that of the files beside it, or here, with classes of its own."""
    modules: list[str] = []
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        texts = archive.read("config.json").decode("utf-8").split('"module": "')
        modules = [text.partition('"')[0] for text in texts[1:]]
    places = [Path(*name.split(".")).with_suffix(".py") for name in dict.fromkeys(modules)]
    files = [folder / place for place in places for folder in (Path.cwd(), path.resolve().parent)]
    found = next((name for file in files if file.is_file() and (name := backend_of(file))), None)
    if "keras" not in sys.modules:
        os.environ.setdefault(VARIABLE, found or _configured())


def _nodes(file: Path, known: set[Path]) -> Iterator[ast.AST]:
    """Those of the syntax tree of a file, and of the files next to it that it imports."""
    file = file.resolve()
    if file in known or not file.is_file():
        return
    known.add(file)
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return
    yield from nodes
    for name in (name for node in nodes for name in _imported(node, near=True)):
        yield from _nodes(file.parent.joinpath(*name.split(".")).with_suffix(".py"), known)


def _imported(node: ast.AST, *, near: bool = False) -> list[str]:
    """What a statement imports; with `near` also from its own package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or (node.level and not near):
        return []
    return [node.module] if node.module else [alias.name for alias in node.names]


def _stated(node: ast.AST) -> list[str]:
    """What a statement puts into the environment: os.environ["KERAS_BACKEND"] = "jax", or setdefault."""
    pair: list[ast.expr] = []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        pair = [node.targets[0].slice, node.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
        pair = node.args
    values = [x.value for x in pair if isinstance(x, ast.Constant)]
    return [str(values[1])] if len(values) == 2 and values[0] == VARIABLE else []


def _configured() -> str:
    """The backend of Keras's config, or its default; another one that is installed if that is not."""
    folder = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    wanted: object = BACKENDS[0]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        wanted = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend", wanted)
    return next(str(x) for x in (wanted, *BACKENDS, "torch") if importlib.util.find_spec(str(x)) is not None)
