"""From the text of a target to a module: `my_model.py:MyAttention` and `embed_size=64`. Runs the code of that file.

target = parse("my_model.py:MyAttention", ["embed_size=64", "heads=8"])
module = target.build()                  # and target.build(heads=4), for the same with other arguments
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from headwise.doctor.calling.sizes import BUILT_WITH
from headwise.doctor.finding import Where
from headwise.doctor.lines import last_line
from headwise.doctor.targets.arguments import Arguments, parse_setting
from headwise.doctor.targets.places import nearest, place_of
from headwise.doctor.targets.size import LARGEST, size_limit
from headwise.errors import DoctorError
from headwise.language import Sentence, join, printable
from headwise.registry import find_framework, find_framework_of_class


@dataclasses.dataclass(frozen=True)
class Target:
    """A class to examine, or a function that makes the module, and the arguments to call it with."""

    place: str  # a path that ends in .py, or a module such as package.module
    name: str  # MyAttention, or Outer.Inner
    # "embed_size" or "config.embed_size" -> value
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    positional: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def file(self) -> Path | None:
        """The file that will be run; None for a module of a package, whose file is not known in advance."""
        return Path(self.place).expanduser() if self.place.endswith(".py") else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its report has to know of how it was built, a line each."""
        return ()

    def build(self, *, largest: float = LARGEST, **changes: Any) -> Any:
        """The module or Keras layer, with some of its settings changed. Imports its file if it is not imported yet.

        Raises DoctorError with a one-sentence message for every error: no such file or class, missing or unknown
        arguments, an exception in the constructor, a module that is too large, an object that is neither an nn.Module
        nor a Keras layer.
        """
        module = self.made(largest=largest, **changes)
        if not _is_module(module):
            raise self._no_class(Sentence("it returned a {kind}").format(kind=type(module).__name__))
        return module

    def made(self, *, largest: float = LARGEST, **changes: Any) -> Any:
        """What the class or the function makes, whatever it is. Raises what `build` raises."""
        made = self.find()
        if _is_module(made):
            if self.settings or self.positional or changes:
                raise DoctorError(f"{self} is already a module, not a class; remove its arguments and --set")
            return made
        arguments = Arguments(self.name, made, {**self.settings, **changes}, self.positional)
        args, kwargs = arguments.bind()
        with _explained(Sentence(f"{self.name}({arguments})")), size_limit(self.name, largest):
            module = made(*args, **kwargs)
        if isinstance(module, nn.Module) and inspect.isclass(made):
            vars(module)[BUILT_WITH] = inspect.signature(made).bind(*args, **kwargs).arguments
        return module

    def find(self) -> Any:
        """The class, or the function that makes a module. Imports its file."""
        with _explained(Sentence("importing {place}").format(place=self.place)):
            where = _import_file(self.file) if self.file else _import_module(self.place)
        found: Any = where
        for part in self.name.split("."):
            if not hasattr(found, part):
                raise DoctorError(self._no_such(where))
            found = getattr(found, part)
        if _is_module(found):
            return found
        if isinstance(found, type) and not _is_module_class(found):
            bases = ", ".join(x.__name__ for x in found.__bases__)
            raise self._no_class(Sentence("a class that derives from {bases}").format(bases=bases))
        if not callable(found):
            raise self._no_class(Sentence("type {kind}").format(kind=type(found).__name__))
        return found

    def _no_class(self, received: Sentence) -> DoctorError:
        return DoctorError(
            "{target} must be a torch.nn.Module class, a Keras layer, or a function that returns one. Received: "
            "{received}",
            target=self,
            received=received,
        )

    def _no_such(self, where: ModuleType) -> Sentence:
        there = [name for name, x in vars(where).items() if _is_class_of(where, x)]
        near = nearest(self.name, there)
        if near:
            hint = Sentence("Did you mean {name}?").format(name=near)
        else:
            hint = Sentence("Its classes: {names}" if there else "It has no nn.Module").format(names=", ".join(there))
        told = Sentence("{place} has no such class. Received: {name}. {hint}")
        return told.format(place=self.place, name=self.name, hint=hint)


def parse(text: str, settings: Sequence[str] = (), *, folder: Path | None = None) -> Target:
    """A target as it is typed: `path.py:Class`, `package.module:Class`, or `path.py:Class(64, heads=8)`.

    `settings` are more arguments, each `name=value`. A path is relative to `folder`, by default the working directory.
    Runs no code. Raises DoctorError.
    """
    place, called = place_of(text, folder)
    name, positional, known = _call(text, called)
    for each in settings:
        key, value = parse_setting(each)
        known[key] = value
    target = Target(place, name, known, positional)
    if not target.file and not all(part.isidentifier() for part in place.split(".")):
        path = Path(f"{place}.py")
        hint: str = "Expected a path ending in .py, or package.module"
        if path.is_file():
            hint = Sentence("Did you mean {name}?").format(name=f"{path}:{name}")
        told = Sentence("{place} is neither a Python file nor a module. {hint}")
        raise DoctorError(told.format(place=place, hint=hint))
    return target


# --- Parsing ---------------------------------------------------------------------------------------------------------


def _call(text: str, called: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The name, and the arguments by position and by name."""
    try:
        tree = ast.parse(called, mode="eval").body
        made = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        name = ast.unparse(made.func)
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(name)
        known = {x.arg: ast.literal_eval(x.value) for x in made.keywords if x.arg}
        return name, tuple(ast.literal_eval(x) for x in made.args), known
    except (SyntaxError, ValueError) as cause:
        raise DoctorError(
            f"{text}: expected the name of a class after the colon, as in my_model.py:MyAttention, with numbers and "
            f"strings as arguments if any, as in my_model.py:MyAttention(64, heads=8). Received: {called!r}"
        ) from cause


def _is_class_of(where: ModuleType, found: object) -> bool:
    return isinstance(found, type) and _is_module_class(found) and found.__module__ == where.__name__


def _is_module(found: object) -> bool:
    return isinstance(found, nn.Module) or (not isinstance(found, type) and find_framework(found) is not None)


def _is_module_class(found: type) -> bool:
    return issubclass(found, nn.Module) or find_framework_of_class(found) is not None


# --- Importing -------------------------------------------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    _search_in(Path.cwd())  # as `python -m` does
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file like `python file.py`, next to its neighbours; with relative imports, within its package."""
    path = path.resolve()
    package, root = _package(path)
    tree = ast.parse(path.read_bytes(), filename=str(path))
    for folder in _list_folders(path, tree) or [root]:
        _search_in(folder)
    if package and any(isinstance(x, ast.ImportFrom) and x.level for x in ast.walk(tree)):
        _search_in(root)
        return importlib.import_module(".".join((*package, path.stem)))
    # A unique name: a file called torch.py or test.py must not replace the module of that name.
    name = f"headwise_doctor_{zlib.crc32(bytes(path)):08x}.{path.stem}".replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes up by their module
    arguments = sys.argv
    sys.argv = [str(path)]  # a script that reads its arguments must not get the doctor's
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.argv = arguments
    return module


def _package(path: Path) -> tuple[tuple[str, ...], Path]:
    """The packages that a file is in, and the folder that holds the outermost one."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return tuple(parts), folder


def _list_folders(path: Path, tree: ast.Module) -> list[Path]:
    """The folders in which what a file imports is found: its own, or one above it up to the working directory.

    The others are not searched: for `model.rope`, a file model/model.py would be found before the folder `model`.
    """
    names = {x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and not x.level and x.module}
    names |= {name.name for x in ast.walk(tree) if isinstance(x, ast.Import) for name in x.names}
    above = [path.parent, *(x for x in path.parent.parents if x.is_relative_to(Path.cwd()))]
    return [
        folder
        for folder in above
        if any((at := folder.joinpath(*name.split("."))).with_suffix(".py").is_file() or at.is_dir() for name in names)
    ]


def _search_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


# --- Errors ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _explained(doing: Sentence) -> Iterator[None]:
    """Turn every exception of the user's code into one sentence with its line."""
    try:
        yield
    except DoctorError:
        raise
    except SyntaxError as cause:
        at = doing
        if cause.filename:
            at = Sentence("{path}, line {number}").format(path=Where(cause.filename, 0).path, number=cause.lineno)
        raise DoctorError(join([at, cause.msg], ": ")) from cause
    except (Exception, SystemExit) as cause:
        what = Sentence("{doing} raised {error}{at}")
        if isinstance(cause, ModuleNotFoundError) and cause.name:  # without a name the user's own code raised it
            what = Sentence("{doing} needs the module {name}, which cannot be found{at}")
        name = getattr(cause, "name", "")
        raise DoctorError(what.format(doing=doing, error=said(cause), name=name, at=raised_at(cause))) from cause


def said(error: BaseException) -> str:
    """An error in short form: its class and its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def raised_at(error: BaseException) -> str:
    """The line of the user's code that raised: " (my_model.py:12: `assert width % heads == 0`)", or nothing."""
    where = last_line(error)
    return printable(f" ({where}: `{where.code}`)") if where else ""
