"""`headwise train`: train a task on a file and write a run folder. One command per task."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import task_options
from headwise.cli.files import size
from headwise.cli.scores import print_scores
from headwise.cli.shared import shared
from headwise.errors import HeadwiseError
from headwise.language import Sentence, counted, echo, said, sentence_of
from headwise.tasks import kinds
from headwise.tasks.training.folder import alone, check_new

if TYPE_CHECKING:
    from headwise.tasks.options.train import TrainOptions
    from headwise.tasks.task import Task


_LAUNCHED = {"TORCHELASTIC_RUN_ID", "SLURM_NTASKS"}  # variables of torchrun and srun


class _Tasks(click.Group):
    """A group that creates its commands only when they are requested, so `headwise --help` imports no task options."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return kinds.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in kinds.names() else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, names = args[0], kinds.names()
        if word not in names and not word.startswith("-") and not ctx.resilient_parsing:
            near = task_options.near(word, names)
            raise click.UsageError(
                Sentence("No such task {word!r}{near} Expected one of: {names}.").format(
                    word=word, near=near, names=", ".join(names)
                ),
                ctx,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Tasks"):
            formatter.write_dl([(word, kinds.find_options(word).about) for word in kinds.names()])


@click.group(cls=_Tasks, subcommand_metavar="TASK DATA [OPTIONS]...", short_help="Train a model on your own data.")
@shared
def train() -> None:
    """Train a model on your own data and save it in a run folder.

    The folder holds all that headwise predict, evaluate and view need. Ctrl-C saves the state; the same command with
    --resume continues.
    """


class _TrainTask(click.Command):
    """A command whose --help lists the options of its task, and under another heading those of every task."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            if error.possibilities or not (meant := _described(error.option_name, options)):
                raise
            raise click.UsageError(
                Sentence("{message} Did you mean {meant!r}?").format(message=error.message, meant=meant), ctx
            ) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        word = self.name or ""
        own, common = ({field.name for field in part} for part in task_options.in_order(kinds.find_options(word)))
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        first = [record for name, record in records.items() if record and name not in own | common]
        for title, some in (
            ("Options", first),
            (
                Sentence("Options of {word}").format(word=word),
                [record for name, record in records.items() if record and name in own],
            ),
            ("Options of every task", [record for name, record in records.items() if record and name in common]),
        ):
            with formatter.section(title):
                formatter.write_dl(some)


def _described(flag: str, options: Iterable[click.Option]) -> str | None:
    """Find the option whose help text has the words of an unknown flag: --lr has the help of --learning-rate.

    If several options fit, return the one with the shortest help text; None if no option fits.
    """
    words = re.findall(r"\w+", flag.lower())
    found = [
        each
        for each in options
        if (said := re.findall(r"\w+", (each.help or "").lower()))
        and all(get_close_matches(word, said, n=1, cutoff=0.8) for word in words)
    ]
    return min(found, key=lambda each: len(each.help or "")).opts[0] if found else None


def _command(word: str) -> click.Command:
    options = kinds.find_options(word)
    data = click.Argument(["data"], required=False, metavar="DATA")
    path = click.Path(path_type=Path)
    how = [
        click.Option(["--out"], type=path, metavar="RUN", help=f"The run folder.  [default: {word}-run]"),
        click.Option(["--resume"], is_flag=True, help="Continue the training in --out where it was stopped."),
        click.Option(
            ["--config"], type=path, metavar="PATH", help="A YAML file of options; the command line overrides it."
        ),
        click.Option(["--print-config"], is_flag=True, help="Print all options as such a file and exit."),
    ]

    @shared
    def command(**parameters: Any) -> None:
        _train(word, **parameters)

    return click.command(
        word,
        cls=_TrainTask,
        params=[data, *how, *task_options.click_options(options)],
        help=f"{options.about}\n\nDATA is a CSV, TSV, JSON, JSON lines or Parquet file, or the name of a data set on "
        f"the hub. For example:\n\n\b\n  headwise train {word} {options.data_example}",
    )(command)


def _train(
    word: str,
    /,  # a task may have an option of this name
    *,
    data: str | None,
    out: Path | None,
    resume: bool,
    config: Path | None,
    print_config: bool,
    **chosen: Any,
) -> None:
    options = kinds.find_options(word)
    from_file = task_options.read_config(config, word, options) if config is not None else {}
    from_line = task_options.given_among(options, chosen)
    given = {**from_file, **from_line}
    if print_config:
        echo(task_options.as_yaml(word, options, given), nl=False)
        return
    folder = out or Path(f"{word}-run")
    if data is None and not resume:
        missing = Sentence("DATA is missing: expected, for example, {example}.").format(example=options.data_example)
        raise click.UsageError(missing, click.get_current_context())
    if not resume:
        if not _LAUNCHED & os.environ.keys():  # with several processes only the first may look, in `fit`
            check_new(folder)
        _check(options, given, config, set(from_line))
    data = data or _read_data_name(folder)
    task = _fit(word, data, folder, resume, given)
    if _is_first():
        _sum_up(task, folder, data)


def _check(options: type[TrainOptions], given: dict[str, Any], config: Path | None, on_line: set[str]) -> None:
    """Check the options. A message names an option as the user wrote it."""
    from headwise.tasks.options.train import make

    try:
        make(options, given)
    except HeadwiseError as error:
        name, colon, rest = str(error).partition(": ")
        if not colon or not name.isidentifier():
            raise
        is_of_file = config and name in given.keys() - on_line
        where = f"--config {config}: {name}" if is_of_file else f"--{name.replace('_', '-')}"
        told = Sentence(f"{where}: {rest}")
        if isinstance(known := sentence_of(error), Sentence) and "option" in known.values:
            told = Sentence(told, known.template, {**known.values, "option": where})
        raise type(error)(told) from error


def _read_data_name(folder: Path) -> str:
    """Return the name of the training data of a run folder: with --resume it need not be given again."""
    from headwise.tasks.training.run import read_config

    name: str = read_config(folder)["data"]["training"]["name"]
    return name


def _fit(word: str, data: str, folder: Path, resume: bool, given: dict[str, Any]) -> Task[Any]:
    kind = kinds.find_class(word)
    from headwise.tasks.options.train import make
    from headwise.tasks.rows.encodings import encoded_as
    from headwise.tasks.training.run import read_config

    before = read_config(folder, kind)["options"] if resume else {}
    options = make(kind.options_type, {**before, **given})
    # Another training in this folder is told of now, not after the data were read.
    with alone(folder) if _is_first() else nullcontext(), encoded_as(options.encoding):
        read = kind.read(data, options)
    if _is_first():
        echo(said("{name}: {rows}", name=read.name, rows=counted(len(read), "row")), err=True)
    return kind.fit(read, out=folder, resume=resume, **given)


def _is_first() -> bool:
    """Return whether this is the first of several processes (torchrun, srun); only the first prints."""
    from headwise.tasks.training import strategies

    return strategies.first()


def _sum_up(task: Task[Any], folder: Path, data: str) -> None:
    """Print the validation scores and the commands to use next, with a file of the kind of the training data."""
    from headwise.tasks.rows.sources import find_suffix

    if task.scores is not None:
        print_scores(task.scores, Sentence("validation"))
    run, test = shlex.quote(str(folder)), f"test{find_suffix(Path(data)) or '.csv'}"
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    echo(said("Wrote {run} ({size}). Next:", run=run, size=size(written)))
    example = shlex.quote(data) if task.reads_files else said(task.options.input_example)
    views = [f"view {run} {example}"] if example else []
    for command in (f"predict {run} {example or f'--file {test}'}", f"evaluate {run} {test}", *views):
        echo(f"  headwise {command}")
