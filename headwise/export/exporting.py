"""`export`, the function behind `headwise export`: it writes an export, measures its speed, and writes the card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, FileError, brief
from headwise.export import FORMATS, card, manifest, task_files
from headwise.export.exported import Exported
from headwise.export.folder import check_free, replacing_folder
from headwise.export.format import Format
from headwise.export.manifest import Manifest
from headwise.export.source import Source, load
from headwise.export.writing import Order, Written
from headwise.extras import need
from headwise.files import seal
from headwise.language import Sentence
from headwise.masks import Mask
from headwise.tasks.task import Task
from headwise.tasks.training.run import read_scores
from headwise.version import __version__

RANDOM_ONLY = "No real inputs were given, so it was compared with PyTorch on random inputs only."


def export(
    source: str | Path | Task[Any] | nn.Module | Source,
    to: str,
    out: str | Path,
    *,
    precision: str | None = None,
    weights: bool = False,
    tolerance: float | None = None,
    rows: Any = None,
    mask: Mask | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
    speed: bool = True,
    **options: Any,
) -> Exported:
    """Export a trained task or a model for another system, compare it with PyTorch, and write its card.

    >>> export("runs/reviews", "onnx", "reviews.onnx")

    Args:
        source: the run folder of a task, a BERT's folder or hub id, "my_model.py:MyModel", or a task or module object.
        to: "onnx", "torch", "savedmodel", or another name in `headwise.export.FORMATS`.
        out: a new or empty folder, or the folder of an old export, which is replaced.
        precision: "fp32" (the default); for onnx also "fp16" and "int8", for torch also "bf16" and "fp16".
        weights: for onnx and torch: whether the graphs also return the attention weights.
        tolerance: the largest allowed difference from the model's outputs, in standard deviations of their values.
        rows: for a task: real inputs for the comparison, in the form that `task.predict` takes.
        mask, examples: for a module without a task; see `make_graphs`.
        speed: whether to measure the time of calls, for the card.
        options: the options of the format. onnx: attention="op", "plain" or "auto" (the default). torch: aoti=True or
            False, whether to compile AOTInductor packages; the default is True if a C++ compiler is found.

    Raises:
        ArgumentError: an option or a model that this format does not support, or a folder that is not empty.
        CheckpointError, DoctorError: the source cannot be loaded.
        ExportError: the model cannot be traced, written or run, or its outputs differ too much. No file is left behind.
        FileError: a file cannot be written.
    """
    check_options(to, precision=precision, weights=weights, examples=tuple(examples), **options)
    form = FORMATS[to]
    out = Path(out).expanduser()
    check_free(out)
    known = _source(source)
    scores = None if known.run is None else read_scores(known.run)
    given = {name: value for name, value in options.items() if value is not None}
    with replacing_folder(out) as folder:
        used = precision or form.precisions[0]
        order = Order(known.subject, folder, used, tolerance, speed, weights, rows, mask, tuple(examples))
        try:
            written = form.write(order, **given)
        except OSError as cause:
            raise FileError(f"cannot write {out}: {cause.strerror or cause}") from cause
        if isinstance(known.subject, Task):
            task_files.write(folder, known.subject, known.run)
        made = _manifest(form, order, written)
        manifest.write(folder, made)
        _keep_tokenizer(known, folder)
        seal(folder)
        card.write(_load(folder, written, made), known.subject, source=known.name, scores=scores)
    return _load(out, written, made)


def _load(folder: Path, written: Written, made: Manifest) -> Exported:
    """Load the export; its notes are those that were made, which can be said in another language."""
    found = Exported.load(folder, written.speed)
    return replace(found, manifest=replace(found.manifest, notes=made.notes))


def _manifest(form: Format, order: Order, written: Written) -> Manifest:
    told = Sentence("The size of axis {axis} is at most {most}.")
    ends = [told.format(axis=axis, most=most) for axis, most in written.longest.items()]
    notes = [*written.notes, *ends, *_comparison(order, written)]
    versions = {"headwise": __version__, "torch": str(torch.__version__), **written.versions}
    options = {**written.options} | ({"weights": order.weights} if form.weights else {})
    return Manifest(form.name, order.task, order.precision, tuple(written.files), tuple(notes), versions, options)


def _comparison(order: Order, written: Written) -> Iterator[str]:
    """Yield notes for the card: which graphs were not compared with PyTorch, or only on random inputs."""
    missing = [graph.file for graph in written.files if not graph.differences]
    if missing:
        yield Sentence("Not compared with PyTorch: {files}.").format(files=", ".join(missing))
    if left_out := sum(found.left_out for graph in written.files for found in graph.differences):
        yield Sentence(
            "{count} values at padding were not compared: nn.TransformerEncoder writes 0 there in PyTorch alone."
        ).format(count=left_out)
    if len(missing) < len(written.files) and not any(graph.real for graph in order.graphs):
        yield RANDOM_ONLY


def check_options(to: str, *, precision: str | None, **options: Any) -> None:
    """Raise ArgumentError for an unknown format, precision or option, or a missing extra.

    None, False and () count as not given.
    """
    if to not in FORMATS:
        raise ArgumentError(f"to: expected one of {', '.join(FORMATS)}. Received: to={to!r}")
    form = FORMATS[to]
    if form.extra:
        need(f"--to {to}", form.extra)
    if precision is not None and precision not in form.precisions:
        others = [other.name for other in FORMATS.usable() if precision in other.precisions]
        raise ArgumentError(
            f"precision: expected one of {', '.join(form.precisions)} for {to}. Received: precision={precision!r}"
            + (f". {precision} is available for {' and '.join(others)}" if others else "")
        )
    for name, value in options.items():
        if value not in (None, False, ()) and not form.has(name):
            others = [other.name for other in FORMATS.usable() if other.has(name)]
            owners = f"of {' and '.join(others)}, not of {to}" if others else "of no format"
            received = "" if name == "examples" else f", {name}={value!r}"
            raise ArgumentError(f"{name}: this is an option {owners}. Received: to={to!r}{received}")
    for option in form.options:
        value = options.get(option.name)
        wanted: tuple[Any, ...] = option.choices or (True, False)
        if value is not None and value not in wanted:
            expected = ", ".join(map(str, wanted))
            raise ArgumentError(f"{option.name}: expected one of {expected}. Received: {option.name}={brief(value)}")


def _source(source: str | Path | Task[Any] | nn.Module | Source) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, nn.Module):  # a task is a module too
        return Source(getattr(source, "name", type(source).__name__), source)
    return load(str(source))


def _keep_tokenizer(known: Source, out: Path) -> None:
    """Copy the tokenizer of a checkpoint, if it has one, into the export (a task's export writes its own tokenizer)."""
    if known.checkpoint is None:
        return
    from headwise.tasks.text.subwords import Subwords

    try:
        Subwords.from_pretrained(known.checkpoint).save(out)
    except CheckpointError:  # the checkpoint has no tokenizer, or one of another kind
        return
    except OSError as cause:
        raise FileError(f"cannot write into {out}: {cause.strerror or cause}") from cause
