"""`export`, the function behind `headwise export`: write an export, measure its speed, and write the card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, FileError
from headwise.export import card
from headwise.export.exported import Exported
from headwise.export.folder import check_free, replacing_folder
from headwise.export.graphs import graphs_of
from headwise.export.manifest import Kind
from headwise.export.source import Source, load
from headwise.export.speed import Timing, timings
from headwise.masks import Mask
from headwise.tasks.task import Task
from headwise.tasks.training.run import read_scores

KINDS: tuple[Kind, ...] = get_args(Kind)
# Options that only some kinds have -> these kinds.
OPTIONS: dict[str, tuple[Kind, ...]] = {
    "attention": ("onnx",),
    "weights": ("onnx", "torch"),
    "aoti": ("torch",),
    "examples": ("onnx", "torch"),
}
PRECISIONS: dict[Kind, tuple[str, ...]] = {
    "onnx": ("fp32", "fp16", "int8"),
    "torch": ("fp32", "bf16", "fp16"),
    "savedmodel": ("fp32",),
}


def export(
    source: str | Path | Task[Any] | nn.Module | Source,
    to: Kind,
    out: str | Path,
    *,
    attention: str | None = None,
    precision: str | None = None,
    weights: bool = False,
    aoti: bool | None = None,
    tolerance: float | None = None,
    rows: Any = None,
    mask: Mask | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
    speed: bool = True,
) -> Exported:
    """Export a trained task or a model for another system, compare it with PyTorch, and write its card.

    >>> export("runs/reviews", "onnx", "reviews.onnx")

    Args:
        source: a run folder, a BERT's folder or hub id, "my_model.py:MyModel", or a task or module object.
        to: "onnx", "torch" or "savedmodel".
        out: a new or empty folder, or an old export, which is replaced.
        attention: for onnx: "op", "plain" or "auto" (the default).
        precision: "fp32" (the default); for onnx also "fp16" and "int8", for torch also "bf16" and "fp16".
        weights: for onnx and torch: whether the graphs also return the attention weights.
        aoti: for torch: whether to compile AOTInductor packages; None = if a C++ compiler is found.
        tolerance: largest allowed difference from the model's outputs, in standard deviations of their values.
        rows: real inputs for the comparison, in the form that `task.predict` takes.
        mask, examples: for a module without a task, see `graphs_of`.
        speed: whether to measure the time of calls, for the card.

    Raises:
        ArgumentError: an option or a model that this kind does not support, or a folder that is not empty.
        CheckpointError, DoctorError: the source cannot be loaded.
        ExportError: it cannot be traced, written or run, or its outputs differ. No file is left behind.
        FileError: a file cannot be written.
    """
    if to not in KINDS:
        raise ArgumentError(f"to: expected one of {', '.join(KINDS)}. Received: to={to!r}")
    check_options(to, precision=precision, attention=attention, weights=weights, aoti=aoti, examples=tuple(examples))
    out = Path(out).expanduser()
    check_free(out)
    known = _source(source)
    scores = None if known.run is None else read_scores(known.run)
    given: dict[str, Any] = {"rows": rows, "mask": mask, "tolerance": tolerance, "run": known.run}
    taken: tuple[Timing, ...] = ()
    with replacing_folder(out) as folder:
        if to == "onnx":
            from headwise.export.onnx.export import export as to_onnx

            given |= {"precision": precision or "fp32", "weights": weights, "examples": examples}
            exported = to_onnx(known.subject, folder, attention=attention or "auto", **given)
        elif to == "torch":
            from headwise.export.torch.export import export as to_torch

            given |= {"precision": precision or "fp32", "weights": weights, "examples": examples}
            exported = to_torch(known.subject, folder, aoti=aoti, **given)
        else:
            from headwise.export.savedmodel.export import export as to_savedmodel

            exported, taken = to_savedmodel(known.subject, folder, speed=speed, **given)
        _keep_tokenizer(known, folder)
        if speed and to != "savedmodel":
            taken = timings(exported, _graphs(known, rows, mask, examples, weights))
        card.write(exported, known.subject, source=known.name, scores=scores, speed=taken)
    return Exported.load(out)


def check_options(to: Kind, *, precision: str | None, **options: Any) -> None:
    """Raise ArgumentError for a precision or option that a kind lacks; None, False and () mean not given."""
    if precision is not None and precision not in PRECISIONS[to]:
        others = [kind for kind in KINDS if precision in PRECISIONS[kind]]
        raise ArgumentError(
            f"precision: expected one of {', '.join(PRECISIONS[to])} for {to}. Received: precision={precision!r}"
            + (f". {precision} is available for {' and '.join(others)}" if others else "")
        )
    for name, value in options.items():
        if value not in (None, False, ()) and to not in OPTIONS[name]:
            received = "" if name == "examples" else f", {name}={value!r}"
            raise ArgumentError(
                f"{name}: only {' and '.join(OPTIONS[name])} has this option. Received: to={to!r}{received}"
            )


def _source(source: str | Path | Task[Any] | nn.Module | Source) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, nn.Module):  # a task is a module too
        return Source(getattr(source, "name", type(source).__name__), source)
    return load(str(source))


def _graphs(known: Source, rows: Any, mask: Mask | None, examples: Sequence[tuple[Tensor, ...]], weights: bool) -> Any:
    from headwise.graphs.weights import with_weights

    graphs = graphs_of(known.subject, rows, mask=mask, examples=examples)
    return tuple(with_weights(graph) for graph in graphs) if weights else graphs


def _keep_tokenizer(known: Source, out: Path) -> None:
    """Copy the tokenizer of a checkpoint, if it has one; a task's export writes its own."""
    if known.checkpoint is None:
        return
    from headwise.tasks.text.subwords import Subwords

    try:
        Subwords.from_pretrained(known.checkpoint).save(out)
    except CheckpointError:  # it has none, or one of another kind
        return
    except OSError as cause:
        raise FileError(f"cannot write into {out}: {cause.strerror or cause}") from cause
