"""card.md, the model card of an export: what it is, its origin, accuracy and speed, and how to call it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from headwise.export import FORMATS, calling
from headwise.export.exported import Exported
from headwise.export.speed import Timing, machine
from headwise.files import writing
from headwise.graphs.graph import Value
from headwise.language import join, named, said
from headwise.tasks.scores import Scores
from headwise.tasks.scoring.class_scores import recall
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG

NAME = "card.md"


def write(
    exported: Exported,
    subject: Task[Any] | nn.Module,
    *,
    source: str,
    scores: Scores | None = None,
) -> Path:
    """Write the card into an export's folder.

    Args:
        exported: the export.
        subject: the exported task or module.
        source: what was exported, as the card names it: a run folder or a checkpoint.
        scores: the scores of the task on held-out data.

    Raises:
        FileError: the card cannot be written.
    """
    path = exported.folder / NAME
    parts = [
        _head(exported, subject, source),
        _origin(exported.folder, scores),
        _model(subject),
        _graphs(exported),
        _files(exported),
        _speed(exported.speed),
        _calling(exported, subject),
        _versions(exported),
        _notes(exported.manifest.notes),
    ]
    with writing(path) as part:
        part.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return path


def _head(exported: Exported, subject: Task[Any] | nn.Module, source: str) -> str:
    manifest = exported.manifest
    kind = FORMATS[manifest.kind].title
    task, about = "", "A function of tensors without a task."
    if isinstance(subject, Task):
        task, about = f"{subject.name}: ", subject.options.about
    # The card shows only options that were chosen: options with a text, and switches that are on.
    chosen = {name: value for name, value in manifest.options.items() if value is True or isinstance(value, str)}
    options = ", ".join(f"{name} {value}" if isinstance(value, str) else name for name, value in chosen.items())
    made = said(
        "Made by `headwise export` of `{source}`, as {kind}, precision {precision}{options}.",
        source=source,
        kind=kind,
        precision=manifest.precision,
        options=f" ({options})" if options else "",
    )
    return f"# {task}{Path(source).name}\n\n{said(about)}\n\n{made}"


def _origin(folder: Path, scores: Scores | None) -> str:
    """Return the card's sections about the training data and about the scores on held-out data."""
    parts = []
    path = folder / CONFIG
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    data = config.get("data") or {}
    rows = [
        (said(part), told["name"], f"{told['rows']:,}", told["fingerprint"])
        for part, told in data.items()
        if isinstance(told, dict)
    ]
    if rows:
        parts.append(_title("Data") + _table(("part", "name", "rows", "fingerprint"), rows))
        remarks = [
            each for told in data.values() if told for each in (*told.get("left_out", ()), *told.get("remarks", ()))
        ]
        parts += ["\n".join(f"- {said('{told}.', told=remark)}" for remark in remarks)] if remarks else []
    if scores is not None:
        names = list(scores.baselines)
        found = [
            (named(name), _number(value), *(_number(scores.baselines[each].get(name)) for each in names))
            for name, value in scores.values.items()
        ]
        told = "The model in PyTorch, on {count:,} held-out row{s}."
        parts += [_title("Scores of the task") + said(told, count=scores.count, s="" if scores.count == 1 else "s")]
        parts += [_table(("score", "model", *map(recall, names)), found)]
    return "\n\n".join(parts)


def _model(subject: Task[Any] | nn.Module) -> str:
    model: Any = subject.model if isinstance(subject, Task) else subject
    count = sum(parameter.numel() for parameter in model.parameters())
    encoder = getattr(model, "encoder", None)
    parts = [type(model).__name__, *([type(encoder).__name__] if isinstance(encoder, nn.Module) else [])]
    config = getattr(model, "config", None) or getattr(encoder, "config", None)
    told = _title("Model") + said("{model}, {count:,} parameters.", model=join(parts, " on "), count=count)
    return told + (f"\n\n```text\n{config}\n```" if config is not None else "")


def _graphs(exported: Exported) -> str:
    """Return the card's section about graphs: their inputs and outputs, and the differences of outputs from PyTorch."""
    parts = [_title("Graphs").strip()]
    for graph in exported.manifest.graphs:
        values = [(said("input"), *_told(value)) for value in graph.inputs]
        values += [(said("output"), *_told(value)) for value in graph.outputs]
        opset = "" if graph.opset is None else f", opset {graph.opset}"
        parts.append(f"`{exported.path_of(graph)}`{opset}\n\n" + _table(("", "name", "dtype", "shape"), values))
    rows = [
        (
            f"`{exported.path_of(graph)}`",
            found.output,
            f"{found.largest:.2e}",
            f"{found.relative:.2e}",
            f"{graph.tolerance:g}",
            "" if found.agreement is None else f"{found.agreement:.2%}",
        )
        for graph in exported.manifest.graphs
        for found in graph.differences
    ]
    if not rows:
        return "\n\n".join([*parts, said("Not compared with the model in PyTorch.")])
    heads = ("file", "output", "largest difference", "in std. dev.", "tolerance", "same argmax")
    told = said(
        "Compared with the model in PyTorch (float32) on random inputs, and on real ones if there were any. Std. dev. "
        "is the standard deviation of the model's values."
    )
    return "\n\n".join([*parts, told, _table(heads, rows)])


def _told(value: Value) -> tuple[str, str, str]:
    return value.name, str(value.dtype).removeprefix("torch."), f"[{', '.join(map(str, value.axes))}]"


def _files(exported: Exported) -> str:
    rows = [(f"`{name}`", _size(size)) for name, size in exported.files.items() if name != NAME]
    return _title("Files") + _table(("file", "size"), rows)


def _speed(timings: Sequence[Timing]) -> str:
    if not timings:
        return _title("Speed") + said("Not measured.")
    runtimes = list(dict.fromkeys(name for timing in timings for name in timing.seconds))
    rows = [
        (
            *(each.graph, str(each.batch), str([*each.shape])),
            *(f"{1000 * each.seconds[name]:.2f}" if name in each.seconds else "" for name in runtimes),
        )
        for each in timings
    ]
    threads = timings[0].threads
    told = said(
        "Milliseconds per call on the CPU of the exporting machine ({machine}; PyTorch with {threads} thread{s}): the "
        "median of a few calls, taken in turns.",
        machine=machine(),
        threads=threads,
        s="" if threads == 1 else "s",
    )
    return f"{_title('Speed')}{told}\n\n" + _table(("graph", "batch", "first input", *runtimes), rows)


def _calling(exported: Exported, subject: Task[Any] | nn.Module) -> str:
    labels, pairs = (tuple(subject.labels), subject.reads_pairs) if isinstance(subject, Task) else ((), False)
    code = calling.example(exported, labels, pairs=pairs)
    told = f"{_title('How to call it')}{said('In this folder, without headwise:')}\n\n```python\n{code}```"
    return "\n\n".join([told, *map(said, FORMATS[exported.manifest.kind].more(exported.manifest))])


def _versions(exported: Exported) -> str:
    versions = {**exported.manifest.versions, "python": platform.python_version()}
    return _title("Versions") + _table(("", "version"), [*versions.items()])


def _notes(notes: Sequence[str]) -> str:
    return _title("Notes and limits") + "\n".join(f"- {said(note)}" for note in notes) if notes else ""


def _title(text: str) -> str:
    return f"## {said(text)}\n\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[said(head) for head in heads], ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
