"""`headwise worksheet`: one attention computation, step by step, as a workbook, a page, Markdown or in the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import check_writable, size
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from headwise.masks import Mask
    from headwise.worksheet import Worksheet

TOKENS = "I drink and know things"
KINDS = ("multi-head", "latent", "mla", "bert")
SCHEMES = ("none", "rope", "alibi", "t5")
SUFFIXES = (".xlsx", ".md", ".html")

# Options that not every kind has.
_ONLY = {
    "memory": ("multi-head",),
    "kv_heads": ("multi-head",),
    "positions": ("multi-head",),
    "latents": ("latent",),
    "model": ("bert",),
}
# Masks by how they are written, and which kinds take them.
_MASKS = {
    "causal": ("multi-head", "mla"),
    "window:LEFT,RIGHT": ("multi-head", "mla"),
    "prefix:N": ("multi-head", "mla"),
    "padding:N": KINDS,
    "none": KINDS,
}


@click.command()
@click.option("--kind", type=click.Choice(KINDS), default="multi-head", show_default=True, help="Which attention.")
@click.option("--tokens", metavar="TEXT", default=TOKENS, show_default=True, help="The text, a token a word.")
@click.option("--memory", metavar="TEXT", help="Another text that the first one reads: cross-attention.")
@click.option("--mask", metavar="MASK", help="none, causal, window:LEFT,RIGHT, prefix:N or padding:N, N real tokens.")
@click.option("--heads", type=click.IntRange(1, 8), help="How many heads. Default: 2.")
@click.option("--kv-heads", type=click.IntRange(1, 8), help="How many heads of keys and values. Default: as many.")
@click.option("--positions", type=click.Choice(SCHEMES), help="What the heads know of positions. Default: none.")
@click.option("--latents", type=click.IntRange(1, 16), help="With --kind latent: how many. Default: 2.")
@click.option("--model", metavar="PATH", help="With --kind bert: a small BERT in place of one that is made up.")
@click.option("--seed", type=int, metavar="N", help="Of the made-up numbers. Default: 0.")
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH", help="What to write: .xlsx, .html or .md.")
@click.option("--show", is_flag=True, help="Print the steps, also where --out is given.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def worksheet(kind: str, tokens: str, out: Path | None, show: bool, **options: Any) -> None:
    """Work one attention computation out, step by step.

    The numbers are made up, small, and the same each time. An .xlsx is a workbook with a sheet a step and live
    formulas: change a number and everything after it follows. Without --out the steps are printed.

    multi-head is the attention of 2017, latent a few learned vectors that read the text (Perceiver, Set Transformer),
    mla DeepSeek's compressed keys and values, bert a layer of BERT.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if kind not in _ONLY.get(name, KINDS):
            raise ArgumentError(f"--{name.replace('_', '-')}: goes with --kind {_ONLY[name][0]}, not {kind}")
    if "model" in given and (extra := given.keys() - {"model", "mask"}):
        raise ArgumentError(f"--{min(extra).replace('_', '-')}: goes with made-up numbers, not with --model")
    if out is not None:
        if out.suffix.lower() not in SUFFIXES:
            raise ArgumentError(f"--out {out}: expected a name that ends in {', '.join(SUFFIXES)}")
        check_writable(out, "--out")
        if out.suffix.lower() == ".xlsx":
            from headwise.worksheet.xlsx import load_openpyxl

            load_openpyxl()  # before work is spent
    mask = _parse_mask(given.pop("mask", "causal" if kind == "mla" else "none"), kind)
    sheet = _of_model(given["model"], tokens, mask) if "model" in given else _made_up(kind, tokens, mask, given)
    if out is None or show:
        sheet.show()
    if out is not None:
        sheet.write(out)
        click.echo(f"Wrote {out} ({size(out.stat().st_size)}, {len(sheet)} steps).")


def _made_up(kind: str, tokens: str, mask: Mask | None, given: dict[str, Any]) -> Worksheet:
    from headwise.worksheet.demo import demo, split

    if "positions" in given:
        given["scheme"] = given.pop("positions")
    if "memory" in given:
        given["memory"] = split(given["memory"])
    return demo(kind, split(tokens), mask=mask, **given)


def _of_model(model: str, text: str, mask: Mask | None) -> Worksheet:
    """What a small checkpoint makes of a text, cut by its own tokenizer."""
    import torch

    from headwise.models import Bert, checkpoint
    from headwise.text import Tokenizer
    from headwise.worksheet import make
    from headwise.worksheet.builder import LONGEST
    from headwise.worksheet.given import check_width

    folder = checkpoint.resolve(model)
    check_width(f"--model {model}", int(checkpoint.read_config(folder).get("hidden_size", LONGEST)))
    bert = Bert.from_pretrained(folder)
    tokens = Tokenizer.from_pretrained(folder).encode(text)
    ids = torch.tensor([tokens.ids])
    count = len(tokens.ids)
    real = None if mask is None else mask.to_bool(1, count)[0, 0]
    return make(bert, ids, tokens=tokens.labels, real=real)


def _parse_mask(given: str, kind: str) -> Mask | None:
    """`window:2,0` as a mask. Raises ArgumentError."""
    allowed = [form for form, kinds in _MASKS.items() if kind in kinds]
    name, _, numbers = given.partition(":")
    form = next((form for form in allowed if form.partition(":")[0] == name), "")
    wanted = form.partition(":")[2].count(",") + 1 if ":" in form else 0
    if not form or not (re.fullmatch(r"\d+(,\d+)*", numbers) if wanted else given == name):
        raise ArgumentError(f"--mask: with --kind {kind} expected {', '.join(allowed)}. Received: {given!r}")
    values = [int(each) for each in numbers.split(",")] if wanted else []
    if len(values) != wanted:
        raise ArgumentError(f"--mask: expected {form}, received {given!r}")
    if name == "none":
        return None

    from headwise import masks

    mask: Mask = getattr(masks, name)(*values)
    return mask
