"""Which classes of Python files may compute attention, and which lines they depend on: read from the text, not run.

A candidate derives from a class whose name ends in Module or Attention, has a forward, and mentions a softmax or one of
the calls that hold one: itself, in its base classes, or in what these use of their files.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.language import sentence_of

Line = tuple[Path, int]
# In the name of what is called or read, in lower case and without underscores.
_TELLING = (
    *("softmax", "scaleddotproductattention", "multiheadattention", "flashattn", "flexattention"),
    *("efficientattention", "transformerencoder", "transformerdecoder"),
)
_OTHERWISE = ("logsoftmax", "gumbel")  # of classes that are chosen, not of keys


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A class that may compute attention."""

    file: Path
    name: str
    line: int
    lines: frozenset[Line]  # of what it runs; without those of other candidates that it uses, which are their own


def candidates(files: Sequence[Path]) -> tuple[list[Candidate], dict[Path, str]]:
    """The candidates of these files, in order; and the files that cannot be read, with the reason."""
    read: list[_File] = []
    failed: dict[Path, str] = {}
    for path in files:
        try:
            read.append(_File(path, ast.parse(path.read_bytes())))
        except SyntaxError as error:  # noqa: PERF203 (each file is read by itself)
            failed[path] = f"line {error.lineno}: {error.msg}"
        except (ValueError, OSError, RecursionError) as error:
            failed[path] = sentence_of(error)
    everywhere = {name: each for file in read for name, each in file.classes().items()}
    chosen: list[list[_Part]] = []  # each the class, and those that it derives from
    for file in read:
        for one in file.classes().values():
            family = _family(one, everywhere)
            if _is_module(family, everywhere) and any(_tells(x) for part in _used(family) for x in part.names):
                chosen.append(family)
    found = []
    for family in chosen:
        one, *bases = family
        # A base class that is a candidate is a part of the class all the same.
        others = [other[0] for other in chosen if other[0] not in (one, *bases)]
        lines = frozenset(line for part in _used(family, others) for line in part.lines)
        found.append(Candidate(one.file.path, one.node.name, one.node.lineno, lines))  # type: ignore[attr-defined]
    return found, failed


class _File:
    """The statements of a file, by the name that each of them defines."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.parts: dict[str, list[_Part]] = {}
        for node in _top(tree.body):
            kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            stored = [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
            for name in [node.name] if isinstance(node, kinds) else stored:
                self.parts.setdefault(name, []).append(_Part(self, node))

    def classes(self) -> dict[str, _Part]:
        """By name; of several, the last."""
        return {name: x for name, parts in self.parts.items() for x in parts if isinstance(x.node, ast.ClassDef)}


@dataclasses.dataclass(frozen=True)
class _Part:
    """A statement of a file."""

    file: _File
    node: ast.stmt

    @property
    def lines(self) -> Iterator[Line]:
        begin = min([self.node.lineno, *(x.lineno for x in getattr(self.node, "decorator_list", ()))])
        yield from ((self.file.path, line) for line in range(begin, (self.node.end_lineno or begin) + 1))

    @property
    def names(self) -> Iterator[str]:
        """What it reads or calls, by name or as an attribute."""
        for each in ast.walk(self.node):
            if isinstance(each, ast.Name | ast.Attribute):
                yield each.id if isinstance(each, ast.Name) else each.attr

    @property
    def bases(self) -> list[str]:
        return [ast.unparse(x).rpartition(".")[2] for x in getattr(self.node, "bases", ())]


def _family(one: _Part, everywhere: dict[str, _Part]) -> list[_Part]:
    """A class and those that it derives from, which may be in other files."""
    found = [one]
    for each in found:
        known = (each.file.classes().get(name) or everywhere.get(name) for name in each.bases)
        found += [base for base in known if base is not None and base not in found]
    return found


def _is_module(family: list[_Part], everywhere: dict[str, _Part]) -> bool:
    outside = [name for each in family for name in each.bases if name not in everywhere]
    methods = [getattr(x, "name", "") for each in family for x in ast.iter_child_nodes(each.node)]
    return any(name.endswith(("Module", "Attention")) for name in outside) and "forward" in methods


def _used(family: Iterable[_Part], without: Sequence[_Part] = ()) -> list[_Part]:
    """Some classes, and what they use of their files; but not these."""
    found = list(family)
    for part in found:
        for name in part.names:
            found += [x for x in part.file.parts.get(name, ()) if x not in found and x not in without]
    return found


def _tells(name: str) -> bool:
    """Whether what is called or read by this name computes attention, or a softmax."""
    name = name.lower().replace("_", "")
    telling = name == "transformer" or any(word in name for word in _TELLING)
    return telling and not any(word in name for word in _OTHERWISE)


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a file; of `if`, `try` and `with` those inside."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            handlers = (x for handler in getattr(node, "handlers", ()) for x in handler.body)
            yield from _top([*node.body, *getattr(node, "orelse", ()), *handlers, *getattr(node, "finalbody", ())])
        else:
            yield node
