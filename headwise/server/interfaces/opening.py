"""`open_interface`: find out what kind of model a folder contains, and open an interface to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import torch

from headwise.errors import ArgumentError, CheckpointError, HeadwiseError
from headwise.export import manifest
from headwise.server.interface import Interface
from headwise.server.interfaces import precision as precisions
from headwise.server.interfaces.answering import Answering
from headwise.server.settings import Backend
from headwise.tasks.training.run import CONFIG


def open_interface(
    path: str | Path, *, backend: str = "auto", precision: str = "fp32", threads: int = 0
) -> Interface[Any]:
    """Return an interface to a run folder (a trained task), to an ONNX export, or to a BERT checkpoint.

    Args:
        path: a run folder, an export of `headwise export --to onnx`, or a BERT: a folder or a hub id.
        backend: "torch" for run folders and checkpoints, "onnx" for ONNX exports; "auto" = what the folder needs.
        precision: the precision of PyTorch: "fp32", or "bf16" if the processor supports it. An export has its own.
        threads: the number of threads of PyTorch or ONNX Runtime; 0 = its default.

    Raises:
        CheckpointError: the folder cannot be served, or not with this backend.
        ArgumentError: an unknown backend, or a precision that is not supported here.
    """
    if backend not in get_args(Backend):
        raise ArgumentError(f"backend: expected one of {', '.join(get_args(Backend))}. Received: backend={backend!r}")
    if threads < 0:
        raise ArgumentError(f"threads: expected 0 (one per core) or more. Received: threads={threads}")
    if threads:
        torch.set_num_threads(threads)
    opened = _open(path, backend, precision, threads)
    opened.threads = threads
    return _checked(opened) if opened.precision != "fp32" else opened


def _open(path: str | Path, backend: str, precision: str, threads: int) -> Answering[Any]:
    folder = Path(path).expanduser()
    if manifest.is_export(folder):
        return _open_export(folder, backend, precision, threads)
    if backend == "onnx":
        raise CheckpointError(
            f"{path} is not an ONNX export, which backend onnx needs. Make one with "
            f"headwise export {path} --to onnx --out DIR and serve DIR, or choose backend torch"
        )
    if (folder / CONFIG).is_file():
        from headwise import tasks
        from headwise.server.interfaces.task_interface import TaskInterface

        task = tasks.load(folder)
        return TaskInterface(task, precisions.check(precision, task.device))
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} cannot be served: expected a run folder of headwise train (with {CONFIG}), "
            f"an ONNX export (with {manifest.NAME}), or a BERT (with config.json and model.safetensors)"
        )
    from headwise.server.interfaces.bert_tensors import BertTensors

    return BertTensors(path, precisions.check(precision, torch.device("cpu")))


def _open_export(folder: Path, backend: str, precision: str, threads: int) -> Answering[Any]:
    found = manifest.read(folder)
    if found.kind != "onnx":
        raise CheckpointError(
            f"{folder} is an export to {found.kind}, but headwise serve needs an ONNX export. Make one with "
            "headwise export RUN --to onnx --out DIR, or serve the run folder"
        )
    if backend == "torch":
        raise CheckpointError(
            f"{folder} is an ONNX export. Choose backend onnx, or serve the run folder it was made from"
        )
    if precision not in ("fp32", found.precision):
        raise ArgumentError(
            f"precision: {folder} was exported in {found.precision}. Received: {precision!r}. Leave it out, or "
            f"export again: headwise export RUN --to onnx --precision {precision} --out DIR"
        )
    if found.task == "tensors":
        from headwise.server.interfaces.onnx_tensors import OnnxTensors

        return OnnxTensors(folder, found, threads)
    from headwise.export.load import load
    from headwise.export.onnx.session import Runtime
    from headwise.server.interfaces.task_interface import TaskInterface

    return TaskInterface(load(folder, Runtime(threads=threads or None)), "fp32")


def _checked(opened: Answering[Any]) -> Answering[Any]:
    """Return the interface unchanged, after comparing an answer of its model in bfloat16 and in float32.

    Raises ArgumentError if the answers differ, or if the model generates text token by token.
    """
    description, precision = opened.description, opened.precision
    if description.streams:
        raise ArgumentError(
            f"precision: {description.task} generates token by token, where a small error leads to another text: "
            f"expected fp32. Received: precision={precision!r}"
        )
    assert description.example is not None
    answers: list[Any] = []
    for each in ("fp32", precision):
        opened.precision = each
        (answer,) = opened.answer([opened.read(description.example)])
        if isinstance(answer, HeadwiseError):
            raise answer
        answers.append(answer)
    precisions.compare(description.outputs, *answers)
    return opened
