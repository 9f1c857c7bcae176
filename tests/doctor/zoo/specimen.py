"""What a specimen of the zoo is: how to make it, what is wrong with it, and how it is fixed."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path

from torch import nn

from tests.doctor.zoo.fixes import FIXES


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A home-made attention module with its label."""

    name: str  # file.Class
    make: functools.partial[nn.Module]
    broken: tuple[frozenset[str], ...]  # each mistake: the names of findings that name it; () = healthy
    why: str
    fix: tuple[tuple[str, str], ...] = ()  # what the source says, and what it should say

    @property
    def source(self) -> Callable[..., nn.Module]:
        return self.make.func

    def fixed(self, folder: Path) -> functools.partial[nn.Module]:
        """How the same class is made with its mistakes fixed: in a copy of its file, so that it has a source."""
        path = Path(inspect.getfile(self.source))
        whole, part = path.read_text(encoding="utf-8"), inspect.getsource(self.source)
        for old, new in self.fix:
            if part.count(old) == 1:
                whole = whole.replace(part, part.replace(old, new))
                part = part.replace(old, new)
            elif whole.count(old) == 1:  # in a class or function that it calls
                whole = whole.replace(old, new)
            else:
                raise ValueError(f"{self.name}: {old!r} stands {part.count(old)} times in its source, expected once")
        copy = folder / f"{self.name.replace('.', '_').lower()}_mended.py"
        copy.write_text(whole, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(copy.stem, copy)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cls = getattr(module, self.source.__name__)
        return functools.partial(cls, *self.make.args, **self.make.keywords)


def _name(cls: type[nn.Module]) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def healthy(make: functools.partial[nn.Module], why: str) -> Specimen:
    return Specimen(_name(make.func), make, (), why)  # type: ignore[arg-type]


def broken(make: functools.partial[nn.Module], *mistakes: set[str], why: str) -> Specimen:
    """A mistake is given by the names that name it."""
    name = _name(make.func)  # type: ignore[arg-type]
    return Specimen(name, make, tuple(map(frozenset, mistakes)), why, FIXES[name])
