"""`headwise watch`: run any model on a text and save the attention of all heads in one file."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headwise.cli.files import NamedText, check_writable, read_lines, read_texts, size, tell_cut
from headwise.cli.layers import LayerRange, parse_layers
from headwise.cli.loading import DTYPES, load_model, make_only, tell_missing
from headwise.cli.output import progress_bar
from headwise.cli.shared import COUNT, PATH, encoding, shared
from headwise.cli.unknown import tell_unknown
from headwise.errors import ArgumentError, RecordError
from headwise.files import check_tensors
from headwise.language import Sentence, counted, echo, join, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from headwise.capture.pretrained import Pretrained
    from headwise.records import Seen
    from headwise.text import Tokens


@click.command(short_help="Record the attention of any model on a text, in a file.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", "files", multiple=True, help="A UTF-8 text file to read.", **PATH)
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Hugging Face id or folder. Default: MiniLM, a BERT, from the extra demo."
)
@click.option("--out", default=Path("run.hw"), help="The file to write.", **PATH)
@click.option("--layers", metavar="LIST", help="The layers to keep, such as 0,2-4. Default: all.")
@click.option(
    "--only", "patterns", multiple=True, metavar="PATTERN", help='Module paths to keep, such as "decoder.*.self_attn".'
)
@click.option("--max-length", help="Cut texts to N tokens. Default: the model's maximum.", **COUNT)
@click.option("--generate", help="Also generate N tokens after the text, greedily.", **COUNT)
@click.option("--values", is_flag=True, help="Also save the values, which norm-based weights need.")
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", help="The dtype of the model.")
@click.option(
    "--statistics-only",
    is_flag=True,
    help="Write no file: print what each head does, over all texts, one text after the other, in little memory.",
)
@click.option("--lines", is_flag=True, help="With --statistics-only: each line of a --file is a text.")
@click.option(
    "--chunk", help="With --statistics-only: decoders read N tokens at a time, with their cache. Default: 512.", **COUNT
)
@encoding
@shared
def watch(
    texts: tuple[str, ...],
    files: tuple[Path, ...],
    model: str | None,
    out: Path,
    layers: str | None,
    patterns: tuple[str, ...],
    max_length: int | None,
    generate: int | None,
    values: bool,
    dtype: str,
    statistics_only: bool,
    lines: bool,
    chunk: int | None,
) -> None:
    """Record the attention of any model on each TEXT.

    Writes one file with the queries and keys of every layer, from which headwise stats and headwise.load compute the
    weights. Texts come from the command line, from files, or from standard input (-). Several texts form one padded
    batch.
    """
    ranges = parse_layers(layers)
    if statistics_only:
        given = click.get_current_context().get_parameter_source("out") is not ParameterSource.DEFAULT
        for option, value in (("--out", given), ("--values", values), ("--generate", generate)):
            if value:
                raise ArgumentError(
                    Sentence("--statistics-only writes no file and keeps no vectors: leave out {option}").format(
                        option=option
                    )
                )
        if lines and (texts or not files):
            raise ArgumentError(
                "--lines: expected --file PATH and no TEXT. Received: " + ("TEXT" if texts else "no file")
            )
        documents = read_lines(files) if lines else iter(read_texts(texts, files))
        _print_statistics(model, documents, ranges, patterns, max_length, dtype, chunk or 512)
        return
    if lines or chunk:
        raise ArgumentError(
            Sentence("{option}: only with --statistics-only").format(option="--lines" if lines else "--chunk")
        )
    check_writable(out, "--out", files, "an input file")
    check_tensors(out)
    named = read_texts(texts, files)

    with progress_bar() as tell:
        tell(0, 0, Sentence("loading {name}").format(name=model or Sentence("the model")))
        pretrained = load_model(model, generates=generate is not None, dtype=dtype)
        tell_missing(pretrained)
        tokens = _encode(pretrained, named, max_length, generate or 0)
        for each, read in zip(named, tokens, strict=True):
            tell_unknown(each.name, read)
        seen = _run(pretrained, tokens, make_only(pretrained.model, ranges, patterns), values, generate, tell)
        _check(seen)
        tell(0, 0, Sentence("writing {name}").format(name=out))
        seen.save(out)

    from headwise.cli.heads import print_unseen

    print_unseen(make_console(highlight=False), seen.coverage())
    if len({len(each.ids) for each in tokens}) > 1:
        echo(said("note: shorter texts are padded with [PAD], and headwise stats includes the padding rows"))
    heads = sorted({record.shape[1] for record in seen})
    counts = Sentence("{layers} of {heads} heads").format(
        layers=counted(len(seen.layers), "layer"), heads=join(map(str, heads), " or ")
    )
    lengths = sorted({record.shape[3] for record in seen})
    examples = f"{len(named)} × " if len(named) > 1 else ""
    echo(
        said(
            "Wrote {out} ({size}): {counts}, {examples}{tokens} tokens. Next: headwise stats {file}",
            out=out,
            size=size(out.stat().st_size),
            counts=counts,
            examples=examples,
            tokens=join(map(str, lengths), " or "),
            file=shlex.quote(str(out)),
        )
    )


def _print_statistics(
    model: str | None,
    documents: Iterator[NamedText],
    ranges: Sequence[LayerRange] | None,
    patterns: Sequence[str],
    max_length: int | None,
    dtype: str,
    chunk: int,
) -> None:
    """Read one text after the other, without storing records, and print the statistics over all texts."""
    from headwise.capture.context import watch
    from headwise.records.summary import RunningSummary

    found, tokens, coverage = RunningSummary(), 0, None
    with progress_bar() as tell:
        tell(0, 0, Sentence("loading {name}").format(name=model or Sentence("the model")))
        pretrained = load_model(model, generates=False, dtype=dtype)
        tell_missing(pretrained)
        only = make_only(pretrained.model, ranges, patterns)
        for document in documents:
            (read,) = _encode(pretrained, [document], max_length, 0)
            advance = _steps(
                tell, Sentence("reading text {number}").format(number=found.runs + 1), -(-len(read.ids) // chunk)
            )
            with watch(pretrained.model, only=only, statistics=found.statistics(), keep=False) as seen:
                pretrained.read_on(read, chunk, advance)
            _check(seen)
            seen.tokens = [read]
            found.add(seen)
            tokens, coverage = tokens + len(read.ids), seen.coverage()
    if coverage is None:
        raise ArgumentError("--lines: expected at least one line with a word. Received: none")

    from headwise.cli.heads import print_unseen, print_whole

    console = make_console(highlight=False)
    print_whole(console, found.summary())
    print_unseen(console, coverage)
    echo(said("Read {runs}, {tokens:,} tokens.", runs=counted(found.runs, "text"), tokens=tokens))


def _encode(pretrained: Pretrained, named: Sequence[NamedText], max_length: int | None, generate: int) -> list[Tokens]:
    """Tokenize each text, cut to the maximum length; prints what was cut."""
    longest = pretrained.max_length
    if max_length is not None and longest is not None and max_length > longest:
        raise ArgumentError(
            Sentence(
                "--max-length: expected at most {longest}, the model's limit. Received: --max-length={max_length}"
            ).format(longest=longest, max_length=max_length)
        )
    limit = max_length if longest is None else min(max_length or longest, longest)
    if limit is not None and longest is not None and generate and not pretrained.writes_apart:
        limit = min(limit, longest - generate)
        if limit < 1:
            raise ArgumentError(
                Sentence(
                    "--generate: expected less than {longest}, the model's limit. Received: --generate={generate}"
                ).format(longest=longest, generate=generate)
            )
    encoded = []
    for each in named:
        tokens = pretrained.encode(each.text, limit)
        if tokens.cut:
            tell_cut(each, tokens)
        if not tokens.ids:
            raise ArgumentError(
                Sentence("{name}: the tokenizer of {model} returns no tokens for this text").format(
                    name=each.name, model=pretrained.name
                )
            )
        encoded.append(tokens)
    return encoded


def _run(
    pretrained: Pretrained,
    tokens: Sequence[Tokens],
    only: list[int | str] | None,
    values: bool,
    generate: int | None,
    tell: Callable[[int, int, str], None],
) -> Seen:
    from headwise.capture.context import watch
    from headwise.capture.sites import attention_modules

    model = pretrained.model
    with watch(model, only=only, values=values) as seen, contextlib.ExitStack() as hooks:
        if generate is None:
            places = [module for _, module in attention_modules(model)]
            advance = _steps(tell, "reading, layer by layer", len(places))
            for module in places:
                hooks.callback(module.register_forward_hook(lambda *_: advance()).remove)
            labelled: Any = {"target": pretrained.read(tokens)}
        else:
            labelled = pretrained.generate(tokens, generate, _steps(tell, "generating, token by token", generate))
    try:
        seen.tokens = labelled
    except RecordError as error:
        echo(said("headwise: the file has no names of tokens: {error}", error=error), err=True)
    return seen


def _check(seen: Seen) -> None:
    """Raise ArgumentError if a requested layer or path does not exist, RecordError if nothing was recorded."""
    unseen = (*seen.coverage().missed, *seen.coverage().refused)
    for note in seen.coverage().notes:
        if note.startswith("only=") and not unseen:
            wanted, _, message = note.removeprefix("only=").partition(": ")
            raise ArgumentError(
                Sentence("--{option}: {message}").format(
                    option="layers" if wanted.isdecimal() else "only", message=message
                )
            )
    if not seen:
        was = Sentence("{site} was {status}: {how}")
        why = [was.format(site=each.name, status=Sentence(each.status), how=each.how) for each in unseen[:1]]
        raise RecordError(
            Sentence("no attention was recorded, so no file was written: {reasons}").format(
                reasons=join(why or seen.coverage().notes, ". ")
            )
        )


def _steps(tell: Callable[[int, int, str], None], what: str, total: int) -> Callable[[], None]:
    """Begin a progress bar of `total` steps; return a function that counts one more step as done."""
    tell(0, total, what)
    done = itertools.count(1)
    return lambda: tell(next(done), total, what)
