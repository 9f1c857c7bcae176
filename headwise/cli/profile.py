"""`headwise profile`: measures what every head of a model does over a corpus, and writes it to one file."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.bulk import check_ray, ray_options
from headwise.cli.files import check_writable, size
from headwise.cli.layers import parse_layers
from headwise.cli.loading import load_model, make_only, tell_missing
from headwise.cli.shared import COUNT, PATH, encoding, shared
from headwise.errors import ArgumentError
from headwise.files import check_tensors
from headwise.language import Sentence, counted, echo, printable, said
from headwise.tables import make_console
from headwise.tasks.rows.sources import readable

if TYPE_CHECKING:
    from headwise.profiles import Corpus, Profile
    from headwise.profiles.profile import Head
    from headwise.tasks.bulk.running import Engine

SHOWN = 16  # number of heads in the table


@click.command(short_help="Read a corpus, and write what each head does over all of it.")
@click.option("--model", metavar="ID_OR_FOLDER", help="Hugging Face id or folder. Default: MiniLM from the extra demo.")
@click.option("--file", "path", help="The corpus: a UTF-8 text file, .csv, .tsv, .jsonl or .parquet.", **PATH)
@click.option("--dataset", metavar="NAME", help="The corpus: a Hugging Face data set, NAME, NAME:SPLIT or a folder.")
@click.option("--column", default="text", metavar="NAME", help="The column with the texts.")
@click.option("--lines", is_flag=True, help="Each line of a text file is a text. Default: each paragraph.")
@click.option(
    "--length",
    type=click.IntRange(min=4),
    metavar="N",
    help="Cut texts into windows of N tokens at most. Default: 128, or what the model can read.",
)
@click.option("--batch", default=2048, help="Tokens that the model reads at once.", **COUNT)
@click.option("--max-tokens", help="Stop after about N tokens. Default: all.", **COUNT)
@click.option("--examples", default=8, help="Texts to keep for each head.", **COUNT)
@click.option("--layers", metavar="LIST", help="The layers to profile, such as 0,2-4. Default: all.")
@click.option("--out", default=Path("profile.hw"), help="The file to write.", **PATH)
@ray_options
@encoding
@shared
def profile(
    model: str | None,
    path: Path | None,
    dataset: str | None,
    column: str,
    lines: bool,
    length: int | None,
    batch: int,
    max_tokens: int | None,
    examples: int,
    layers: str | None,
    out: Path,
    engine: Engine,
    workers: int | None,
    ray_address: str | None,
) -> None:
    """Read a corpus with a model and write what each head does over all of it.

    Memory does not grow with the corpus. Every 10 seconds a checkpoint is written beside --out; the same command goes
    on from it after an interruption. Next: headwise view profile.hw
    """
    ranges = parse_layers(layers)
    check_ray(engine, workers=workers, address=ray_address)
    if path is not None:
        with readable(path):  # before torch is imported
            path.stat()
    corpus = _corpus(path, dataset, column, lines)
    check_writable(out, "--out", [path] if path else [])
    check_tensors(out)
    if out.suffix != ".hw":  # headwise view knows a file by it
        raise ArgumentError(Sentence("--out: expected a name that ends in .hw. Received: {out}").format(out=out))
    next(iter(corpus), None)  # a wrong name is reported before the model is loaded

    from headwise.profiles import profile as collect
    from headwise.profiles.profile import DEFAULT_MODEL
    from headwise.profiles.resuming import partial

    pretrained = load_model(model, generates=False, dtype="auto")
    tell_missing(pretrained)
    if model is None:  # a folder has no meaning on another machine
        pretrained = dataclasses.replace(pretrained, name=DEFAULT_MODEL)
    elif Path(model).expanduser().is_dir():  # Ray workers run in other folders
        model = str(Path(model).expanduser().absolute())
    longest = pretrained.max_length
    if length is not None and longest is not None and length > longest:
        raise ArgumentError(
            Sentence("--length: {name} reads {longest} tokens at most. Received: --length {length}").format(
                name=pretrained.name, longest=longest, length=length
            )
        )
    meter = _Meter(partial(out) if partial(out).exists() else None)
    found = collect(
        pretrained,
        corpus,
        length=length,
        batch=batch,
        kept=examples,
        max_tokens=max_tokens,
        only=make_only(pretrained.model, ranges, ()),
        out=out,
        engine=engine,
        workers=workers or 2,
        address=ray_address,
        load=functools.partial(load_model, model, generates=False, dtype="auto"),
        tell=meter.tell,
    )
    meter.end()
    _print(found)
    echo(
        said(
            "Wrote {out} ({size}): {heads} over {found.texts:,} texts, {found.tokens:,} tokens. Next: headwise view "
            "{file}",
            out=out,
            size=size(out.stat().st_size),
            heads=counted(sum(1 for _ in found.heads()), "head"),
            found=found,
            file=shlex.quote(str(out)),
        )
    )


def _corpus(path: Path | None, dataset: str | None, column: str, lines: bool) -> Corpus:
    from headwise.profiles.corpus import of_dataset, of_file

    if (path is None) == (dataset is None):
        received = Sentence("neither" if path is None else "both")
        raise ArgumentError(
            Sentence("expected a corpus: --file PATH or --dataset NAME. Received: {received}").format(received=received)
        )
    if path is not None:
        return of_file(path, column, lines=lines)
    if lines:
        raise ArgumentError("--lines: a data set has rows, which are its texts. Leave --lines out")
    assert dataset is not None
    return of_dataset(dataset, column)


class _Meter:
    """Shows the progress of the run: one line that changes on a terminal; in a log, a new line each minute."""

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint
        self.begun, self.first, self.told = time.monotonic(), -1, 0.0
        self.live = sys.stderr.isatty()

    def tell(self, found: Profile) -> None:
        """Show the progress; called after each batch."""
        now = time.monotonic()
        if self.first < 0:
            if self.checkpoint is not None:  # the checkpoint was accepted
                echo(said("headwise: going on from {checkpoint}", checkpoint=self.checkpoint), err=True)
            self.first, self.begun = found.tokens, now
        if now - self.told < (0.5 if self.live else 60):
            return
        if self.told or self.live:
            speed = (found.tokens - self.first) / max(1e-9, now - self.begun)
            line = said(
                "{found.texts:,} texts, {found.tokens:,} tokens, {speed:,.0f} tokens/s", found=found, speed=speed
            )
            click.echo(
                f"\r{line}\033[K" if self.live else f"headwise: {line}",
                err=True,
                nl=not self.live,
            )
        self.told = now

    def end(self) -> None:
        """Erase the line that shows the progress."""
        if self.live:
            click.echo("\r\033[K", err=True, nl=False)


def _print(found: Profile) -> None:
    """Print the heads with the highest scores: at most `SHOWN` heads, and at most two of a kind."""

    from headwise.cli.heads import print_whole
    from headwise.cli.output import plain_table, titled

    table = plain_table()
    for name in ("layer", "head", "does", "score", "entropy", "distance", "special", "strongest pair", "example"):
        table.add_column(said(name), justify="right" if name in ("layer", "head", "score", "entropy") else "left")
    heads = striking(found)
    for head in heads:
        kind, score = head.kind
        pair = next(iter(head.pairs(1)), None)
        means = head.means
        cells = (f"{score:.2f}", f"{means['entropy']:.2f}", f"{means['distance']:.1f}", f"{means['special']:.2f}")
        shown = f"{pair.query} → {pair.key}" if pair else ""
        table.add_row(str(head.layer), str(head.head), said(kind), *cells, _cell(shown), _cell(_example(head)))
    print_whole(
        make_console(highlight=False),
        titled(f"{found.corpus} · {said('{tokens:,} tokens', tokens=found.tokens)}", table),
    )
    if len(heads) < (every := sum(1 for _ in found.heads())):
        echo(
            said(
                "{count} of {every} heads: those of each kind that have its highest scores, the number that its rule "
                "compares.",
                count=len(heads),
                every=every,
            )
        )


def striking(found: Profile) -> list[Head]:
    """Choose the heads with the highest scores of their kind, at most two of a kind, in the order of kinds."""
    from headwise.profiles import KINDS

    chosen: list[Head] = []
    for kind in KINDS:
        heads = sorted((head for head in found.heads() if head.kind[0] == kind), key=lambda head: -head.kind[1])
        chosen += heads[:2]
    return chosen[:SHOWN]


def _example(head: Head) -> str:
    if not head.examples:
        return ""
    example = head.examples[0]
    labels = example.window.tokens.labels
    return f"{labels[example.query]} → {labels[example.key]} {example.weights[example.key]:.2f}"


def _cell(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
