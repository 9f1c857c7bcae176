"""Runs the graphs of this folder on TensorRT through ONNX Runtime, and compares them with the CPU.

    python run_tensorrt.py [PROVIDER]

It needs numpy, TensorRT and an ONNX Runtime with TensorRT support (pip install onnxruntime-gpu), but not headwise. The
shapes are in tensorrt.json: engines are built for shapes from "min" to "max", and run with "opt".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

PROVIDER = "TensorrtExecutionProvider"


def main(provider: str = PROVIDER) -> int:
    """Run each graph. Returns the exit status: 1 if ONNX Runtime lacks the provider."""
    there = onnxruntime.get_available_providers()
    if provider not in there:
        print(f"this ONNX Runtime has no {provider}, only {', '.join(there)}. Nothing was run", file=sys.stderr)
        return 1
    folder = Path(__file__).resolve().parent
    for graph in json.loads((folder / "tensorrt.json").read_text(encoding="utf-8")):
        inputs = _inputs(graph)
        expected, _ = _run(folder / graph["file"], ["CPUExecutionProvider"], inputs)
        given, seconds = _run(folder / graph["file"], [(provider, _options(graph, provider))], inputs)
        apart = [float(np.abs(x.astype(np.float64) - y).max(initial=0.0)) for x, y in zip(expected, given)]  # noqa: B905
        told = f"{1000 * seconds:.2f} ms per call on {provider}, largest difference from the CPU {max(apart):.2e}"
        print(f"{graph['file']}: {told}")
    return 0


def _options(graph: dict[str, Any], provider: str) -> dict[str, str]:
    """Return the smallest, usual and largest shapes of a TensorRT engine, as options of the TensorRT provider."""
    if provider != PROVIDER:
        return {}
    return {
        f"trt_profile_{word}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, shape))}" for name, shape in graph[word].items()
        )
        for word in ("min", "opt", "max")
    }


def _inputs(graph: dict[str, Any]) -> dict[str, np.ndarray]:
    """Make input arrays of the shapes "opt": noise for floats, ones for integers (valid ids and masks in any model)."""
    drawn = np.random.default_rng(0)
    found = {}
    for name, shape in graph["opt"].items():
        dtype = np.dtype(graph["dtypes"][name])
        noise = drawn.standard_normal(shape) if dtype.kind == "f" else np.ones(shape)
        found[name] = noise.astype(dtype)
    return found


def _run(path: Path, providers: list[Any], inputs: dict[str, np.ndarray]) -> tuple[list[np.ndarray], float]:
    """Run a graph twice, and return its outputs and the seconds of the second call: the first builds the engine."""
    session = onnxruntime.InferenceSession(str(path), providers=providers)
    session.run(None, inputs)
    begin = time.perf_counter()
    found = session.run(None, inputs)
    return found, time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
