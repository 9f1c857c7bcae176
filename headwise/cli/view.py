"""`headwise view`: a page or a server that shows all heads: of a model on a text, of a trained task, or in records."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from headwise.cli.anything import reading, view_images, view_texts
from headwise.cli.files import NamedText, check_writable, encoded, finish_page, read_stdin, read_texts
from headwise.cli.layers import LayerRange, choose_layers, parse_layers
from headwise.cli.live import carry_model, is_bert, live_bert, live_causal, make_title, predicts, read_prompt
from headwise.cli.looking import look, named_inputs, run_among
from headwise.cli.output import Say, check_served, working
from headwise.cli.patched import patching_among, view_patching
from headwise.cli.profiled import profile_among, view_profile
from headwise.cli.shared import PATH, encoding, shared
from headwise.errors import ArgumentError, brief
from headwise.extras import need
from headwise.files import check_page
from headwise.language import Sentence, counted, echo, join, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from headwise.models.bert import Bert
    from headwise.records import Seen
    from headwise.records.coverage import Coverage
    from headwise.text import Tokenizer
    from headwise.viewer import Input
    from headwise.viewer.live import Live

RECORDS = ".hw"  # the suffix of a file of records
PAGE = Path("attention.html")


@dataclasses.dataclass
class _Found:
    """The content of a page: its inputs, its title, and how they were made."""

    inputs: list[Input]
    title: str
    made: str | None  # the Python code that produces it
    coverage: Coverage | None = None  # which attention modules of the model were recorded
    predictions: Sequence[Sentence] = ()  # of a trained task
    live: Live | None = None  # the model, for a page on which the user types prompts


@click.command(short_help="Show all heads of a model on a text, in an interactive page.")
@click.argument("texts", nargs=-1, metavar="[RUN] [TEXT | RECORDS.hw]...")
@click.option("--file", "files", multiple=True, help="A UTF-8 text file to read.", **PATH)
@click.option(
    "--model",
    metavar="ID_OR_FOLDER",
    help="Any model that reads texts or images: Hugging Face id or folder. An encoder-decoder writes 20 tokens. "
    "Default: MiniLM from the extra demo.",
)
@click.option("--image", "images", multiple=True, help="An image that --model reads, in place of texts.", **PATH)
@click.option("--layers", metavar="LIST", help="The layers to show, such as 0,2-4. Default: all.")
@click.option("--out", help=f"The page to write.  [default: {PAGE}]", **PATH)
@click.option(
    "--serve",
    is_flag=True,
    help="Serve the page until Ctrl-C instead of writing it. Records may be of any length; with one text, or with a "
    "causal --model, prompts are typed on the page, heads are switched off and edges blocked.",
)
@click.option(
    "--with-model",
    is_flag=True,
    help="Put the model into the page, too: the page then answers while you type, offline. For a BERT, or a RUN of "
    "headwise train classify.",
)
@click.option(
    "--dtype", type=click.Choice(["int8", "float32"]), help="The dtype of the weights of --with-model.  [default: int8]"
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port of --serve. Default: a free port.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@encoding
@shared
def view(
    texts: tuple[str, ...],
    files: tuple[Path, ...],
    model: str | None,
    images: tuple[Path, ...],
    layers: str | None,
    out: Path | None,
    serve: bool,
    with_model: bool,
    dtype: Literal["int8", "float32"] | None,
    port: int | None,
    open_page: bool,
) -> None:
    """Show the attention of a model on each TEXT or image, or the records that headwise watch wrote to RECORDS.hw.

    If the first argument is a folder RUN that headwise train wrote, show the attention of the trained task. If it is a
    file that headwise profile wrote, show what each head does over its corpus; if it is a file of patching effects,
    show them as a map.

    Writes one page with every layer and head, which needs no network; with --serve, serves the page instead. Texts come
    from the command line, from files, or from standard input (-). headwise stats prints the heads of records as a
    table.
    """
    ranges = parse_layers(layers)
    run = run_among(texts, model)
    is_file = run is None and any(map(is_records, texts))
    _check_with_model(with_model, dtype, {"--serve": serve, "--image": images, "RECORDS.hw": is_file})
    if run is None and (profile := profile_among(texts, files)):
        view_profile(profile, model, layers, out, serve=serve, port=port, open_page=open_page)
        return
    others = {
        "--model": model,
        "--file": files,
        "--image": images,
        "--layers": layers,
        "--serve": serve,
        "--port": port,
    }
    if run is None and (patching := patching_among(texts, others)):
        view_patching(patching, out, open_page=open_page)
        return
    records = [] if run else _records(texts, files, model)
    if images:
        _check_images(texts, files, model)
    check_served(out, port, serve=serve)
    if serve:
        need("headwise view --serve", "view")
    target = out or PAGE
    if not serve:
        check_writable(target, "--out", records, "the input file of records")
        check_page(target)
    if serve and model and not records and not images and predicts(model):
        prompt = read_prompt(texts, files)
        with working("loading the model"):
            found_live = live_causal(model, prompt, ranges)
        _serve_live(found_live, prompt.text, port, open_page)
        return
    read = _read_one if with_model else read_texts
    named = [] if records or images else read(texts[1:] if run else texts, files)

    with working("loading the records" if records else "loading the model") as say:
        carried = None
        if with_model:
            carried = carry_model(run, model, named[0].text if named else None, dtype or "int8")
            named = named or [NamedText(said("TEXT"), carried.prompt, carried.prompt)]
        if run:
            titles = [each.title for each in named]
            inputs, made, predictions = look(run, [each.text for each in named], titles, ranges)
            found = _Found(inputs, " · ".join(titles), made, predictions=predictions)
        else:
            found = _load(records, ranges) if records else _read(named, model, images, ranges, say, live=serve)
        name = str(run or model or ("" if records else "MiniLM"))
        if name:
            found.inputs = [dataclasses.replace(each, model=name) for each in found.inputs]
        if with_model:
            found.title = make_title(name)
        if not serve:
            from headwise.viewer import write_page

            say(Sentence("writing {name}").format(name=target))
            write_page(target, found.inputs, title=found.title, made=found.made, carried=carried)

    for each in found.predictions:
        echo(said(each))
    if found.coverage:
        from headwise.cli.heads import print_unseen

        print_unseen(make_console(highlight=False), found.coverage)
    if found.live:
        _serve_live(found.live, named[0].text, port, open_page)
        return
    if serve:
        from headwise.viewer.server import serve as run_server

        run_server(found.inputs, title=found.title, made=found.made, port=port or 0, open_page=open_page)
        return
    finish_page(target, "" if with_model else _counts(found.inputs), open_page=open_page)


def _read_one(texts: Sequence[str], files: Sequence[Path]) -> list[NamedText]:
    """Read the text of a page that carries its model; none if neither the arguments nor standard input have one."""
    if not texts and not files:
        piped = "" if sys.stdin.isatty() else read_stdin()
        return [NamedText(said("standard input"), said("standard input"), piped)] if piped.strip() else []
    return [read_prompt(texts, files)]


def _check_with_model(with_model: bool, dtype: str | None, others: dict[str, Any]) -> None:
    if dtype and not with_model:
        raise ArgumentError(
            "--dtype {dtype}: only --with-model writes weights. Add --with-model, or leave --dtype out", dtype=dtype
        )
    for name, given in others.items():
        if with_model and given:
            raise ArgumentError(
                "--with-model and {name} exclude each other: it needs a text, or a RUN and a text", name=name
            )


def _serve_live(live: Live, prompt: str, port: int | None, open_page: bool) -> None:
    from headwise.viewer.server import serve_live

    serve_live(live, prompt, port=port or 0, open_page=open_page)


def _records(texts: Sequence[str], files: Sequence[Path], model: str | None) -> list[Path]:
    """Return the files of records (recorded attention) among the arguments, each once.

    Raises ArgumentError for other input beside them.
    """
    records = [Path(text) for text in texts if is_records(text)]
    if not records:
        return []
    others = [*(text for text in texts if not is_records(text)), *map(str, files)]
    if others:
        raise ArgumentError(
            "{records} is a file of records: expected no texts in addition. Received: {others}",
            records=records[0],
            others=brief(others[0]),
        )
    if model is not None:
        raise ArgumentError(
            "{records} is a file of records, which needs no model. Leave --model out", records=records[0]
        )
    files_of: dict[str, list[Path]] = {}
    for path in records:
        files_of.setdefault(os.path.realpath(path), []).append(path)
    for same in files_of.values():
        if len(same) > 1:
            told = said("headwise: {path} was given {times} times; it is shown once", path=same[0], times=len(same))
            echo(told, err=True)
    return [same[0] for same in files_of.values()]


def is_records(text: str) -> bool:
    """Return whether an argument names a file of records, or a folder with the parts of such a file."""
    return text.endswith(RECORDS) or (os.path.isdir(text) and any(Path(text).glob(f"*-of-*{RECORDS}")))


def _check_images(texts: Sequence[str], files: Sequence[Path], model: str | None) -> None:
    if model is None:
        raise ArgumentError("--image: expected a --model that reads images, such as google/vit-base-patch16-224")
    if others := [*texts, *map(str, files)]:
        raise ArgumentError("--image: expected images alone. Received: {others}", others=brief(others[0]))


def _load(paths: Sequence[Path], ranges: Sequence[LayerRange] | None) -> _Found:
    """Load files of records (recorded attention), and make the content of a page from them."""
    from headwise.records.storage import load
    from headwise.viewer import inputs_of

    loaded: dict[str, Seen] = {str(path): load(path, verify=None) for path in paths}
    chosen = {n for seen in loaded.values() if len(seen) for n in choose_layers(ranges, len(seen.layers))}
    calls = {name: f"headwise.load({_python(name)})" for name in loaded}
    if len(paths) == 1:
        (seen,), (made,) = loaded.values(), calls.values()
        return _Found(inputs_of(seen, layers=chosen), paths[0].name, made)
    made = ", ".join(f"{_python(name)}: {call}" for name, call in calls.items())
    title = " · ".join(path.name for path in paths)
    return _Found(inputs_of(loaded, layers=chosen), title, f"{{{made}}}")


def _python(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _read(
    named: Sequence[NamedText],
    model: str | None,
    images: Sequence[Path],
    ranges: Sequence[LayerRange] | None,
    say: Say,
    *,
    live: bool,
) -> _Found:
    """Run a model on each text or image; return the content of the page."""
    if model and images:
        inputs, coverage = view_images(images, model, ranges, say)
        return _Found(inputs, " · ".join(path.name for path in images), None, coverage)
    if model and not is_bert(model):
        inputs, coverage = view_texts(named, model, ranges, say)
        return _Found(inputs, " · ".join(each.title for each in named), None, coverage)
    return _read_by_bert(named, model, ranges, say, live=live)


def _read_by_bert(
    named: Sequence[NamedText], model: str | None, ranges: Sequence[LayerRange] | None, say: Say, *, live: bool
) -> _Found:
    """Run headwise's own BERT on each text; return the content of the page.

    `live`: also return the model, for a page on which prompts are typed, if there is a single text that was not cut.
    """
    from headwise.models.bert import Bert
    from headwise.models.checkpoint import default_model, resolve
    from headwise.text import Tokenizer

    folder = default_model() if model is None else resolve(model)
    bert, tokenizer = Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder)
    shown = choose_layers(ranges, bert.config.num_layers)
    seen = []
    for number, each in enumerate(named, start=1):
        say(reading(each.name, number, len(named)))
        seen.append(_look(bert, tokenizer, each))
    inputs = named_inputs(seen, [each.title for each in named], shown)
    title = " · ".join(each.title for each in named)
    whole = len(named) == 1 and not any(each.cut for one in seen for each in one.tokens or ())
    if not live or not whole:
        return _Found(inputs, title, None)
    model_too = live_bert(bert, tokenizer, named[0], ranges, title=make_title(model or "MiniLM"))
    return _Found(inputs, title, None, live=model_too)


def _look(bert: Bert, tokenizer: Tokenizer, named: NamedText) -> Seen:
    """Run the model on one text alone, so that nothing is padded, and return its recorded attention."""
    import torch

    from headwise.capture.context import watch

    tokens = encoded(named, tokenizer.encode, bert.config.max_positions)
    with torch.no_grad(), watch(bert, tokens=[tokens]) as seen:
        bert(torch.tensor([tokens.ids]))
    return seen


def _counts(inputs: Sequence[Input]) -> str:
    """Return the numbers of inputs, layers and tokens as text, to print after the size of the page."""
    layers = sum(len(stack.layers) for stack in inputs[0].stacks)
    lengths = [len(stack.cols.tokens.labels) for each in inputs for stack in each.stacks]
    told = Sentence("{layers}, up to {lengths} tokens").format(layers=counted(layers, "layer"), lengths=max(lengths))
    return join([Sentence("{count} inputs").format(count=len(inputs)), told]) if len(inputs) > 1 else told
