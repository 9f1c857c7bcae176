"""`headwise export`: write a trained task, a BERT or a module in a format that another system runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import reason, size
from headwise.cli.later import Later, later
from headwise.cli.output import plain_table, print_report, titled, working
from headwise.cli.shared import encoding, shared
from headwise.errors import ArgumentError, FileError
from headwise.export import FORMATS
from headwise.extras import need
from headwise.language import Sentence, echo, said

if TYPE_CHECKING:
    from rich.console import Group

    from headwise.export.exported import Exported
    from headwise.export.manifest import GraphFile
    from headwise.export.source import Source


def _make_format_options() -> Iterator[click.Option]:
    """Yield the options that depend on the installed export formats."""
    forms = FORMATS.usable()
    yield click.Option(["--to", "kind"], type=click.Choice(list(FORMATS)), required=True, help="The format to write.")
    precisions = " ".join(f"{form.name}: {', '.join(form.precisions)}." for form in forms)
    yield click.Option(
        ["--precision"],
        type=click.Choice(list(dict.fromkeys(each for form in forms for each in form.precisions))),
        help=f"{precisions}  [default: fp32]",
    )
    names = ", ".join(form.name for form in forms if form.weights)
    yield click.Option(["--weights"], is_flag=True, help=f"{names}: also return the attention weights.")
    own = [(form.name, option) for form in forms for option in form.options]
    for name in dict.fromkeys(option.name for _, option in own):
        some = [(form, option) for form, option in own if option.name == name]  # the same option in several formats
        choices = list(dict.fromkeys(choice for _, option in some for choice in option.choices))
        flag, kind = (f"--{name}", click.Choice(choices)) if choices else (f"--{name}/--no-{name}", None)
        says = " ".join(f"{form}: {option.says}" for form, option in some)
        yield click.Option([flag], type=kind, default=None, help=says)


@click.command(cls=Later, short_help="Write a trained model for ONNX, torch.export or TensorFlow.")
@click.argument("source", metavar="RUN_OR_MODEL")
@later(_make_format_options)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to write: new, or an old export.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Largest allowed difference from PyTorch's outputs, in standard deviations of their values; the mean "
    "difference may be an eighth of it.  [default: by precision]",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Real inputs for the comparison. For a task: rows, as predict --file reads them. For a module: inputs written "
    "with torch.save.",
)
@click.option("--no-speed", is_flag=True, help="Do not measure speed for card.md.")
@encoding
@shared
def export(
    source: str,
    kind: Any,
    out: Path,
    precision: str | None,
    weights: bool,
    tolerance: float | None,
    examples: Path | None,
    no_speed: bool,
    **own: Any,
) -> None:
    """Write a trained model for another system, and check that it computes the same there.

    RUN_OR_MODEL is a run folder of headwise train, the folder or hub id of a BERT ("minilm" is the one in the extra
    demo), or my_model.py:MyModel, which is imported, so its code is executed. The export is loaded again without
    headwise and compared with PyTorch on random inputs and on --examples. If the difference is too large, that is an
    error and nothing is written. card.md describes the export: its accuracy, size and speed, and how to call it.
    """
    if examples is not None:
        _check_readable(examples)
    need("headwise export", "train")
    with working(Sentence("loading {name}").format(name=source)) as say:
        from headwise.export import exporting
        from headwise.export.folder import check_free
        from headwise.export.source import load

        check_free(out.expanduser())
        exporting.check_options(kind, precision=precision, weights=weights, **own)
        found = load(source)
        given = _real(found, examples)
        say(Sentence("writing and comparing {name}").format(name=out))
        exported = exporting.export(
            found,
            kind,
            out,
            precision=precision,
            weights=weights,
            tolerance=tolerance,
            speed=not no_speed,
            **own,
            **given,
        )
    print_report(
        _table(exported, said("{source} as {kind}", source=source, kind=f"{kind} {exported.manifest.precision}"))
    )
    for note in exported.manifest.notes:
        echo(said("note: {note}", note=note))
    files = exported.files
    echo(
        said(
            "Wrote {out} ({count} files, {size}); see {readme} for how to call it.",
            out=out,
            count=len(files),
            size=size(sum(files.values())),
            readme=out / "card.md",
        )
    )


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise FileError(
            "--examples {path}: {reason}. Expected a readable file", path=path, reason=reason(error)
        ) from error


def _real(source: Source, path: Path | None) -> dict[str, Any]:
    """Return the inputs in --examples as keyword arguments of `export`, for a task or a module."""
    from headwise.export.source import read_examples
    from headwise.tasks.task import Task

    if path is None:
        return {}
    if isinstance(source.subject, Task):
        return {"rows": str(path)}
    if source.checkpoint is not None:
        raise ArgumentError("--examples: a BERT checkpoint is compared on random tokens only. Leave --examples out")
    return {"examples": read_examples(path)}


def _table(exported: Exported, title: str) -> Group:
    """Make a table with one row for each output of each graph: how far it is from PyTorch's output."""
    from rich.text import Text

    table = plain_table()
    table.add_column(said("file"))
    table.add_column(said("size"), justify="right")
    table.add_column(said("output"), overflow="fold")
    table.add_column(said("largest difference"), justify="right")
    table.add_column(said("in std. dev."), justify="right", style="bold")
    table.add_column(said("tolerance"), justify="right")
    for graph in exported.manifest.graphs:
        begin = (Text(exported.path_of(graph)), size(_bytes(exported, graph)))
        for found in graph.differences:
            numbers = (f"{found.largest:.1e}", f"{found.relative:.1e}", f"{graph.tolerance:g}")
            table.add_row(*begin, Text(found.output), *numbers)
            begin = (Text(""), "")
        if not graph.differences:
            table.add_row(*begin, said("not compared"))
    return titled(title, table)


def _bytes(exported: Exported, graph: GraphFile) -> int:
    """Count the bytes of a graph's file and the weights beside it, or of all files in the graph's folder."""
    begins = (f"{graph.file}/", f"{graph.file}.")
    return sum(count for name, count in exported.files.items() if name == graph.file or name.startswith(begins))
