"""`torch.export` programs as files, and compiled ahead of time by AOTInductor."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from pathlib import Path

import torch
from torch.export import ExportedProgram

from headwise.errors import ExportError
from headwise.export.tracing import first_line
from headwise.files import replacing

PACKAGE = ".aoti.pt2"  # suffix of a package


def save(program: ExportedProgram, path: Path) -> None:
    """Write a program, which `torch.export.load(path).module()` reads. May raise OSError."""
    with replacing(path) as part, part.open("wb") as file:
        torch.export.save(program, file)


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Write an AOTInductor package, which `torch._inductor.aoti_load_package(path)` reads: code for this processor.

    Raises:
        ExportError: the compiler failed.
    """
    part = path.with_name(f".{path.stem}.{os.getpid()}.pt2")  # PyTorch requires this suffix
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(program, package_path=str(part))
        os.replace(part, path)
    except OSError:
        raise
    except Exception as cause:  # raised by the compiler or any part of Inductor
        raise ExportError(f"{path.name}: AOTInductor could not compile it: {first_line(cause)}") from cause
    finally:
        part.unlink(missing_ok=True)


def compiler() -> str | None:
    """The C++ compiler that AOTInductor would use (CXX, or the system's default); None if there is none."""
    named = shlex.split(os.environ.get("CXX", ""))  # "ccache g++"
    return shutil.which(named[0] if named else "clang++" if sys.platform == "darwin" else "g++")
