"""`headwise export`: a trained task, a BERT or a module as something that another system runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import reason, size
from headwise.cli.output import print_report, working
from headwise.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.export.exported import Exported
    from headwise.export.manifest import GraphFile
    from headwise.export.source import Source


@click.command()
@click.argument("source", metavar="RUN_OR_MODEL")
@click.option(
    "--to", "kind", type=click.Choice(["onnx", "torch", "savedmodel"]), required=True, help="What is to be written."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A new folder, or an old export."
)
@click.option(
    "--attention",
    type=click.Choice(["auto", "op", "plain"]),
    help="ONNX: the standard operator Attention, or the plain ones that it stands for.  [default: auto]",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16", "int8"]),
    help="onnx: fp32, fp16, int8. torch: fp32, bf16, fp16. savedmodel: fp32.  [default: fp32]",
)
@click.option("--weights", is_flag=True, help="onnx, torch: return the attention weights too.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="How far an output may be from PyTorch's, in standard deviations of its values; in the mean an eighth of it.  "
    "[default: by precision]",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Real inputs to compare on: rows, as predict --file takes them; of a module what torch.save wrote of them.",
)
@click.option(
    "--aoti/--no-aoti", default=None, help="torch: compile AOTInductor packages.  [default: where a C++ compiler is]"
)
@click.option("--no-speed", is_flag=True, help="Take no times for the card.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def export(
    source: str,
    kind: Any,
    out: Path,
    attention: str | None,
    precision: str | None,
    weights: bool,
    tolerance: float | None,
    examples: Path | None,
    aoti: bool | None,
    no_speed: bool,
) -> None:
    """Write a trained model for another system, and check that it computes the same there.

    RUN_OR_MODEL is a run folder of headwise train, the folder or hub id of a BERT ("minilm" is the one of the extra
    demo), or my_model.py:MyModel, which is imported, so its code runs. What is written is loaded again without
    headwise and compared with PyTorch on random inputs and those of --examples: too large a difference is an error, and
    nothing is written then. card.md says what it is, how near, how large and quick, and how it is called.
    """
    if examples is not None:
        _check_readable(examples)
    with working(f"loading {source}") as say:
        from headwise.export import exporting
        from headwise.export.folder import check_free
        from headwise.export.source import load

        check_free(out.expanduser())
        exporting.check_options(kind, precision=precision, attention=attention, weights=weights, aoti=aoti)
        found = load(source)
        given = _real(found, examples)
        say(f"writing and comparing {out}")
        exported = exporting.export(
            found,
            kind,
            out,
            attention=attention,
            precision=precision,
            weights=weights,
            tolerance=tolerance,
            aoti=aoti,
            speed=not no_speed,
            **given,
        )
    print_report(_table(exported, f"{source} as {kind} {exported.manifest.precision}"))
    for note in exported.manifest.notes:
        click.echo(f"note: {note}")
    files = exported.files
    click.echo(f"Wrote {out} ({len(files)} files, {size(sum(files.values()))}); {out / 'card.md'} says how to call it.")


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise FileError(f"--examples {path}: {reason(error)}; expected a readable file") from error


def _real(source: Source, path: Path | None) -> dict[str, Any]:
    """The real inputs, as `export` takes those of a task, and those of a module."""
    from headwise.export.source import read_examples
    from headwise.tasks.task import Task

    if path is None:
        return {}
    if isinstance(source.subject, Task):
        return {"rows": str(path)}
    if source.checkpoint is not None:
        raise ArgumentError("--examples: a BERT of a checkpoint is compared on random tokens; leave it out")
    return {"examples": read_examples(path)}


def _table(exported: Exported, title: str) -> Table:
    """A row an output of each graph."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_edge=False, title_justify="left", title_style="bold")
    table.add_column("file")
    table.add_column("size", justify="right")
    table.add_column("output", overflow="fold")
    table.add_column("largest difference", justify="right")
    table.add_column("of the spread", justify="right", style="bold")
    table.add_column("tolerance", justify="right")
    for graph in exported.manifest.graphs:
        begin = (Text(graph.file), size(_bytes(exported, graph)))
        for found in graph.differences:
            numbers = (f"{found.largest:.1e}", f"{found.relative:.1e}", f"{graph.tolerance:g}")
            table.add_row(*begin, Text(found.output), *numbers)
            begin = (Text(""), "")
    return table


def _bytes(exported: Exported, graph: GraphFile) -> int:
    """Of a graph's file and of the weights beside it, or of all files in its folder."""
    begins = (f"{graph.file}/", f"{graph.file}.")
    return sum(count for name, count in exported.files.items() if name == graph.file or name.startswith(begins))
