"""`headwise view`: run a model over texts, print a table of its heads, and write a page that shows all of them."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.files import NamedText, check_writable, read_texts, size, tell_cut
from headwise.cli.layers import choose_layers, parse_layers

if TYPE_CHECKING:
    from headwise.models.bert import Bert
    from headwise.text import Tokenizer
    from headwise.viewer import TextAttention


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="A UTF-8 text file to read."
)
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="A BERT: Hugging Face id, or folder. Default: MiniLM, of the extra demo."
)
@click.option("--layers", metavar="LIST", help="The layers to show, such as 0,2-4. Default: all.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("attention.html"),
    show_default=True,
    metavar="PATH",
    help="The page to write.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def view(
    texts: tuple[str, ...], files: tuple[Path, ...], model: str | None, layers: str | None, out: Path, open_page: bool
) -> None:
    """Look inside a BERT while it reads each TEXT.

    Prints a table of the heads and writes one page, which needs no network, with every layer and head as a heat map.
    Texts come from the command line, from files, or from standard input (-).
    """
    ranges = parse_layers(layers)
    check_writable(out, "--out")
    named = read_texts(texts, files)

    with _working("loading the model") as say:
        from rich.console import Console

        from headwise.cli.heads import print_table, summarise
        from headwise.models.bert import Bert
        from headwise.models.checkpoint import default_model, resolve
        from headwise.text import Tokenizer
        from headwise.viewer import write_page

        folder = resolve(model) if model else default_model()
        bert, tokenizer = Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder)
        shown = choose_layers(ranges, bert.config.num_layers)
        seen, tables = [], []
        for number, each in enumerate(named, start=1):
            say(f"reading {each.name} ({number} of {len(named)})")
            seen.append(_look(bert, tokenizer, each, shown))
            tables.append(summarise(seen[-1]))
        say(f"writing {out}")
        write_page(out, seen, title=" · ".join(each.title for each in named))

    console = Console(highlight=False)
    for each, attention, summaries in zip(named, seen, tables, strict=True):
        print_table(console, each.name, attention.tokens.labels, summaries)
    if open_page:
        webbrowser.open(out.resolve().as_uri())
    click.echo(f"Wrote {out} ({size(out.stat().st_size)}): open it in a browser, no network needed.")


def _look(bert: Bert, tokenizer: Tokenizer, named: NamedText, shown: Sequence[int]) -> TextAttention:
    """Run the model over one text by itself, so that nothing is padded, and keep the records of the layers shown."""
    import torch

    from headwise.functional import listening
    from headwise.records.record import AttentionRecord
    from headwise.viewer import TextAttention

    tokens = tokenizer.encode(named.text, max_length=bert.config.max_positions)
    if tokens.cut:
        tell_cut(named, tokens)
    records: list[AttentionRecord] = []
    with torch.no_grad(), listening(lambda call, _: records.append(AttentionRecord(call))):
        bert(torch.tensor([tokens.ids]))
    return TextAttention(tokens=tokens, records=[records[layer] for layer in shown], layers=shown)


@contextmanager
def _working(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being done; yields the function that says what is done next."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"{what} …") as status:
        yield lambda now: status.update(escape(f"{now} …"))
