"""Which classes of Python files may compute attention, and which lines they depend on: read from the text, not run.

A candidate derives from a class whose name ends in Module or Attention, has a forward, and mentions a softmax or one of
the calls that hold one: in the methods that its forward reaches, in its base classes, or in the functions and classes
of its file that those use.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Line = tuple[Path, int]
# In the name of what is called or read, in lower case and without underscores.
_TELLING = (
    *("softmax", "scaleddotproductattention", "multiheadattention", "flashattn", "flexattention"),
    *("efficientattention", "transformerencoder", "transformerdecoder"),
)
_OTHERWISE = ("logsoftmax", "gumbel")  # of classes that are chosen, not of keys
_BEGUN = ("__init__", "forward")  # the methods that every call runs


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A class that may compute attention."""

    file: Path
    name: str
    line: int
    lines: frozenset[Line]  # of what it runs; without those of other candidates that it uses, which are their own


def candidates(files: Sequence[Path]) -> tuple[list[Candidate], dict[Path, str]]:
    """The candidates of these files, in order; and the files that cannot be read, with the reason."""
    read: dict[Path, _File] = {}
    failed: dict[Path, str] = {}
    for path in files:
        tree = _parsed(path)
        if isinstance(tree, str):
            failed[path] = tree
        else:
            read[path] = _File(path, tree)
    every = _Classes(read.values())
    chosen = {(each.file.path, each.node.name) for each in every if every.is_candidate(each)}
    found = []
    for each in every:
        if (each.file.path, each.node.name) in chosen:
            # A base class that is a candidate is a part of the class all the same.
            others = chosen - {(x.file.path, x.node.name) for x in every.family(each)}
            lines = frozenset(line for part in every.parts(each, others) for line in part.lines())
            found.append(Candidate(each.file.path, each.node.name, each.node.lineno, lines))
    return found, failed


@dataclasses.dataclass(frozen=True)
class _Part:
    """A statement that a class runs, or the line in which the class begins."""

    file: _File
    node: ast.stmt

    def lines(self) -> Iterator[Line]:
        decorators = getattr(self.node, "decorator_list", ())
        begin = min([self.node.lineno, *(x.lineno for x in decorators)])
        end = self.node.body[0].lineno - 1 if isinstance(self.node, ast.ClassDef) else self.node.end_lineno
        yield from ((self.file.path, line) for line in range(begin, max(end or begin, begin) + 1))

    def names(self) -> Iterator[str]:
        nodes = [*self.node.bases, *self.node.decorator_list] if isinstance(self.node, ast.ClassDef) else [self.node]
        for node in nodes:
            yield from _names(node)


@dataclasses.dataclass(frozen=True)
class _Class:
    file: _File
    node: ast.ClassDef

    @property
    def bases(self) -> list[str]:
        return [ast.unparse(x).rpartition(".")[2] for x in self.node.bases]

    def methods(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        yield from (x for x in self.node.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef))


class _File:
    """The statements of a file by the name that each of them defines."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.classes: dict[str, _Class] = {}
        self.statements: dict[str, list[ast.stmt]] = {}
        for node in _top(tree.body):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = _Class(self, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.statements.setdefault(node.name, []).append(node)
            else:
                for part in ast.walk(node):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        self.statements.setdefault(part.id, []).append(node)


class _Classes:
    """The classes of all files: a base class may be in another one."""

    def __init__(self, files: Iterable[_File]) -> None:
        self._all = [each for file in files for each in file.classes.values()]
        self._by_name = {each.node.name: each for each in self._all}

    def __iter__(self) -> Iterator[_Class]:
        return iter(self._all)

    def family(self, one: _Class) -> list[_Class]:
        """The class and those that it derives from."""
        found = [one]
        for each in found:
            known = (each.file.classes.get(name) or self._by_name.get(name) for name in each.bases)
            found += [base for base in known if base is not None and base not in found]
        return found

    def is_candidate(self, one: _Class) -> bool:
        family = self.family(one)
        outside = [name for each in family for name in each.bases if name not in self._by_name]
        if not any(name.endswith(("Module", "Attention")) for name in outside):
            return False
        if not any(method.name == "forward" for each in family for method in each.methods()):
            return False
        return any(_tells(name) for part in self.parts(one) for name in part.names())

    def parts(self, one: _Class, without: Iterable[tuple[Path, str]] = ()) -> list[_Part]:
        """What the class runs: its own, and what that uses of its file; but not these classes."""
        left = {*without, *((x.file.path, x.node.name) for x in self.family(one))}
        found = self._own(one)
        for part in found:
            for name in part.names():
                other = part.file.classes.get(name)
                if other is None:
                    more = [_Part(part.file, node) for node in part.file.statements.get(name, ())]
                elif (other.file.path, name) not in left:
                    left.add((other.file.path, name))
                    more = self._own(other)
                else:
                    continue
                found += [each for each in more if each not in found]
        return found

    def _own(self, one: _Class) -> list[_Part]:
        """The statements of a class and its base classes, of the methods those that a call reaches."""
        family = self.family(one)
        methods = [(each.file, method) for each in family for method in each.methods()]
        reached = [x for x in methods if x[1].name in _BEGUN or x[1].decorator_list]
        for _, method in reached:
            wanted = {x.attr for x in ast.walk(method) if isinstance(x, ast.Attribute)}
            reached += [x for x in methods if x[1].name in wanted and x not in reached]
        heads = [_Part(each.file, each.node) for each in family]
        fields = [
            _Part(each.file, node)
            for each in family
            for node in each.node.body
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return [*heads, *fields, *(_Part(file, method) for file, method in reached)]


def _tells(name: str) -> bool:
    """Whether what is called or read by this name computes attention, or a softmax."""
    name = name.lower().replace("_", "")
    telling = name == "transformer" or any(word in name for word in _TELLING)
    return telling and not any(word in name for word in _OTHERWISE)


def _parsed(path: Path) -> ast.Module | str:
    """The syntax tree of a file, or why there is none."""
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, OSError, RecursionError) as error:
        return str(error)


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a file; of `if`, `try` and `with` those inside."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            handlers = (x for handler in getattr(node, "handlers", ()) for x in handler.body)
            yield from _top([*node.body, *getattr(node, "orelse", ()), *handlers, *getattr(node, "finalbody", ())])
        else:
            yield node


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
