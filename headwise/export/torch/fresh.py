"""Run exported files in a new process without headwise, on a graph's examples."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headwise.errors import ExportError
from headwise.export.torch.programs import PACKAGE

ALONE = Path(__file__).with_name("alone.py")

Examples = Sequence[tuple[Tensor, ...]]


def run_alone(files: Sequence[tuple[Path, Examples]]) -> list[list[tuple[Tensor, ...]]]:
    """The outputs of each file on its examples, computed by PyTorch alone.

    Args:
        files: programs and packages (recognised by their suffix), each with its examples.

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
