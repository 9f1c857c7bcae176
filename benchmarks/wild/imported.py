"""A file of a case, imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def imported(path: Path, name: str) -> ModuleType:
    """The module of a file under this name, made anew each time."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
