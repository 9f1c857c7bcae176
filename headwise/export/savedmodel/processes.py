"""Runs TensorFlow in separate processes: one writes a SavedModel, one runs it with TensorFlow alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import ArgumentError, ExportError
from headwise.export.savedmodel.request import Request
from headwise.extras import install
from headwise.graphs.graph import Graph

ALONE = Path(__file__).with_name("alone.py")
CONVERT = "headwise.export.savedmodel.convert"


def check_installed() -> None:
    """Raise ArgumentError unless Keras and TensorFlow are installed."""
    missing = [name for name in ("keras", "tensorflow") if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            f"--to savedmodel needs Keras with TensorFlow: {install('keras')}, and pip install tensorflow. Not "
            f"installed: {' and '.join(missing)}"
        )


def convert(request: Request) -> dict[str, Any]:
    """Write a SavedModel in a process whose Keras uses the TensorFlow backend.

    Returns:
        A dict with "versions" of the packages that wrote it, and "speed", the timings as JSON.

    Raises:
        ExportError: the model cannot be written; the message says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "request.pt"), Path(folder, "answer.json")
        try:
            torch.save(request, asked)
        except Exception as cause:  # pickle raises many kinds of errors
            raise ExportError(f"the model cannot be sent to TensorFlow's process: {cause}") from cause
        # The parent may have imported headwise from its path; the child must find the same package.
        root = str(Path(__file__).parents[3])
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        _run([sys.executable, "-m", CONVERT, str(asked), str(answer)], "written", folder, PYTHONPATH=paths)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in found:
        raise ExportError(f"the model cannot be written as a SavedModel: {found['refused']}. Use --to onnx")
    return found


def run_alone(folder: Path, graph: Graph) -> list[tuple[Tensor, ...]]:
    """Run a SavedModel by TensorFlow alone in a new process, and return its outputs for each example of the graph.

    Raises:
        ExportError: TensorFlow cannot load or run the SavedModel.
    """
    given = {
        f"{number}/{value.name}": x.numpy()
        for number, example in enumerate(graph.examples)
        for value, x in zip(graph.inputs, example, strict=True)
    }
    with tempfile.TemporaryDirectory() as place:
        request, answer = Path(place, "request.npz"), Path(place, "answer.npz")
        np.savez(request, **given)  # type: ignore[arg-type]
        _run([sys.executable, str(ALONE), str(folder.resolve()), str(request), str(answer)], "run", place)
        with np.load(answer) as found:
            return [
                tuple(torch.from_numpy(found[f"{number}/{value.name}"]) for value in graph.outputs)
                for number in range(len(graph.examples))
            ]


def _run(command: Sequence[str], doing: str, folder: str, **environment: str) -> None:
    wanted = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        command,
        env={**os.environ, **wanted, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = said[-1] if said else f"exit code {done.returncode}"
        raise ExportError(f"the SavedModel cannot be {doing} by TensorFlow: {last}")
