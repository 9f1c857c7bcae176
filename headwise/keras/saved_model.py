"""Loads a model from a `.keras` file, with the user's own classes from Python files beside it."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from headwise.errors import ArgumentError


def load_saved(path: Path) -> keras.Model:
    """Load the model in a `.keras` or `.h5` file, without its optimizer.

    Classes that do not belong to Keras are imported from the modules that the file names, if these modules are in the
    working directory or beside the file.

    Raises:
        ArgumentError: the file cannot be loaded; the message gives Keras's reason.
    """
    before = list(sys.path)
    sys.path[:0] = [str(Path.cwd()), str(path.resolve().parent)]
    try:
        return keras.saving.load_model(path, compile=False, custom_objects=dict(_own(path)))
    except Exception as error:
        inner: BaseException = error
        while inner.__context__ is not None:
            inner = inner.__context__
        said = next((line.strip() for line in str(inner).splitlines() if line.strip()), type(inner).__name__)
        raise ArgumentError(
            f"{path}: expected a model that keras.saving.load_model loads. Received: {said[:200]}. If it has classes "
            "of your own, name a function that returns the model, as in my_model.py:make_model"
        ) from error
    finally:
        sys.path[:] = before


def _own(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name in the file, class) for each class of a `.keras` file in the working directory or beside it."""
    config: Any = None
    with contextlib.suppress(OSError, KeyError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    for each in _objects(config):
        place = Path(*each["module"].split(".")).with_suffix(".py")
        if any((folder / place).is_file() for folder in (Path.cwd(), path.resolve().parent)):
            found = getattr(importlib.import_module(each["module"]), str(each["class_name"]), None)
            if found is not None:
                yield str(each["class_name"]), found
                yield str(each.get("registered_name") or each["class_name"]), found


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yield every description of an object (a dict with module and class_name) in a nested config."""
    if isinstance(config, dict) and isinstance(config.get("module"), str) and "class_name" in config:
        yield config
    if isinstance(config, dict | list):
        for each in config.values() if isinstance(config, dict) else config:
            yield from _objects(each)
