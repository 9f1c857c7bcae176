"""Saves `torch.export` programs, compiles them ahead of time by AOTInductor, and runs both without headwise."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from headwise.errors import ExportError
from headwise.export.tracing import first_line
from headwise.files import replacing

PACKAGE = ".aoti.pt2"  # the end of the file name of an AOTInductor package
ALONE = Path(__file__).with_name("alone.py")

Examples = Sequence[tuple[Tensor, ...]]


def save(program: ExportedProgram, path: Path) -> None:
    """Write a program to a file that `torch.export.load(path).module()` reads. May raise OSError."""
    with replacing(path) as part, part.open("wb") as file:
        torch.export.save(program, file)


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Compile a program to a package that `torch._inductor.aoti_load_package(path)` reads: code for this processor.

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
    """Find the C++ compiler that AOTInductor would use: $CXX, or the system's default. None if there is none."""
    named = shlex.split(os.environ.get("CXX", ""))  # "ccache g++"
    return shutil.which(named[0] if named else "clang++" if sys.platform == "darwin" else "g++")


def run_alone(files: Sequence[tuple[Path, Examples]]) -> list[list[tuple[Tensor, ...]]]:
    """Run each file on its examples by PyTorch alone, in a new process without headwise, and return the outputs.

    Args:
        files: `torch.export` programs and AOTInductor packages (their names end in `PACKAGE`), each with its examples.

    Raises:
        ExportError: a file cannot be loaded or run; the message has the last line of the process's output.
    """
    asked = [
        {"file": str(path), "package": path.name.endswith(PACKAGE), "examples": [tuple(each) for each in examples]}
        for path, examples in files
    ]
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.pt"), Path(folder, "answer.pt")
        torch.save(asked, request)
        command = [sys.executable, "-W", "ignore", str(ALONE), str(request), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
        if done.returncode:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            names = ", ".join(path.name for path, _ in files)
            raise ExportError(
                f"{names}: PyTorch alone cannot run it: {said[-1] if said else f'exit code {done.returncode}'}"
            )
        found: list[list[tuple[Tensor, ...]]] = torch.load(answer, weights_only=True)
        return found
