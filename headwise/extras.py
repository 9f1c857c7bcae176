"""The extras of pyproject.toml: packages that only a part of headwise needs, and what is said where one is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from headwise.errors import ArgumentError

# Extra -> those of its packages, by the names under which they are imported, that are looked for.
PACKAGES = {
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "keras": ("keras",),
    "pandas": ("pandas",),
    "plot": ("matplotlib",),
    "ray": ("ray",),
    "serve": ("kserve", "fastapi", "starlette", "uvicorn", "prometheus_client", "grpc", "pytorch_lightning", "yaml"),
    "tensorboard": ("tensorboard",),
    "train": ("pytorch_lightning", "datasets", "torchmetrics", "sacrebleu", "matplotlib", "yaml"),
    "transformers": ("transformers",),
    "view": ("starlette", "uvicorn"),
    "worksheet": ("xlsxwriter",),
}


def need(what: str, extra: str, *packages: str) -> None:
    """Raise ArgumentError, which says how to install it, if a package of an extra is missing. Nothing is imported.

    Args:
        what: the command or function that needs it.
        packages: those of its packages that are needed; none = all of `PACKAGES`.
    """
    missing = [name for name in packages or PACKAGES[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            "{what} needs the extra {extra}. Not installed: {missing}. Install it: {command}",
            what=what,
            extra=extra,
            missing=", ".join(missing),
            command=install(extra),
        )


def install(extra: str) -> str:
    """Return the command that installs an extra: in the clone that this package belongs to, or from a package index."""
    clone = Path(__file__).parents[1]
    if not (clone / "pyproject.toml").is_file():
        return f'pip install "headwise[{extra}]"'
    if Path(sys.prefix) == clone / ".venv":
        return f"{_near(clone / 'scripts' / 'install')} {extra}"
    return f'{_near(Path(sys.executable))} -m pip install -e "{_near(clone)}[{extra}]"'


def _near(path: Path) -> str:
    """Return a path as one types it in the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
