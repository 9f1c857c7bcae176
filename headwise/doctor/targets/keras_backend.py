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
import re
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
    trees = list(_trees(file, set()))
    imported = {name for tree in trees for name in _imported(tree)}
    if not imported & {"keras", "tensorflow"}:
        return None
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    stated = next((name for tree in trees for name in _stated(tree)), None)
    if stated is not None:
        return stated
    found = next((name for name in BACKENDS if name in imported), None)
    return found or "torch"


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
        modules = re.findall(r'"module": "([\w.]+)"', archive.read("config.json").decode("utf-8"))
    places = [Path(*name.split(".")).with_suffix(".py") for name in dict.fromkeys(modules)]
    files = [folder / place for place in places for folder in (Path.cwd(), path.resolve().parent)]
    found = next((name for file in files if file.is_file() and (name := backend_of(file))), None)
    if "keras" not in sys.modules:
        os.environ.setdefault(VARIABLE, found or _configured())


def _trees(file: Path, known: set[Path]) -> Iterator[ast.Module]:
    """The file, and those next to it that it imports."""
    file = file.resolve()
    if file in known or not file.is_file():
        return
    known.add(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield from _trees(file.parent.joinpath(*name.split(".")).with_suffix(".py"), known)


def _imported(tree: ast.Module) -> Iterator[str]:
    """The packages that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _stated(tree: ast.Module) -> Iterator[str]:
    """What the file itself puts into the environment: os.environ["KERAS_BACKEND"] = "jax", or setdefault."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            pair: list[ast.expr] = [node.targets[0].slice, node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
            pair = node.args
        else:
            continue
        values = [x.value for x in pair if isinstance(x, ast.Constant)]
        if len(values) == 2 and values[0] == VARIABLE and isinstance(values[1], str):
            yield values[1]


def _configured() -> str:
    """The backend of Keras's config, or its default; another one that is installed if that is not."""
    folder = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    wanted: object = BACKENDS[0]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        wanted = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend", wanted)
    return next(str(x) for x in (wanted, *BACKENDS, "torch") if importlib.util.find_spec(str(x)) is not None)
