"""`headwise worksheet`: one attention computation, step by step, as a workbook, a page, Markdown or terminal text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headwise.cli.files import check_writable, size
from headwise.cli.masks import parse_mask
from headwise.cli.shared import PATH, shared
from headwise.errors import ArgumentError
from headwise.language import echo, said

if TYPE_CHECKING:
    from headwise.masks import Mask
    from headwise.worksheet import Worksheet

TOKENS = "I drink and know things"
KINDS = ("multi-head", "latent", "mla", "bert")
SCHEMES = ("none", "rope", "alibi", "t5")
SUFFIXES = (".xlsx", ".md", ".html")

# Options that only some kinds of worksheets have -> these kinds.
_ONLY = {
    "memory": ("multi-head",),
    "kv_heads": ("multi-head",),
    "positions": ("multi-head",),
    "latents": ("latent",),
    "model": ("bert",),
}
# The syntax of each mask -> the kinds of worksheets that accept it.
_MASKS = {
    "causal": ("multi-head", "mla"),
    "window:LEFT,RIGHT": ("multi-head", "mla"),
    "prefix:N": ("multi-head", "mla"),
    "lengths:N": KINDS,
    "none": KINDS,
}


# Options that are only for the worksheet of one weight in RECORDS.
_OF_RECORDS = ("layer", "head", "row", "col", "call", "example")


@click.command(short_help="Show one attention computation step by step, as a workbook.")
@click.argument("records", type=click.Path(path_type=Path), required=False)
@click.option("--layer", metavar="N", help="With RECORDS: the layer: its number, its name, or a part of its name.")
@click.option("--head", type=int, metavar="N", help="With RECORDS: the head. Default: 0.")
@click.option("--row", metavar="TOKEN", help="With RECORDS: the query, a position from 0 or the text of a token.")
@click.option("--col", metavar="TOKEN", help="With RECORDS: the key, likewise.")
@click.option("--call", type=int, metavar="N", help="With RECORDS: the forward pass, if the file has several.")
@click.option("--example", type=int, metavar="N", help="With RECORDS: the example of the batch. Default: 0.")
@click.option("--kind", type=click.Choice(KINDS), default="multi-head", help="The kind of attention.")
@click.option("--tokens", metavar="TEXT", default=TOKENS, help="The text; each word is one token.")
@click.option("--memory", metavar="TEXT", help="A second text for cross-attention: it gives the keys and values.")
@click.option("--mask", metavar="MASK", help="none, causal, window:LEFT,RIGHT, prefix:N or lengths:N (N real tokens).")
@click.option("--heads", type=click.IntRange(1, 8), metavar="N", help="Number of heads. Default: 2.")
@click.option(
    "--kv-heads", type=click.IntRange(1, 8), metavar="N", help="Number of key and value heads. Default: as --heads."
)
@click.option("--positions", type=click.Choice(SCHEMES), help="The position scheme. Default: none.")
@click.option(
    "--latents", type=click.IntRange(1, 16), metavar="N", help="With --kind latent: number of latents. Default: 2."
)
@click.option("--model", metavar="PATH", help="With --kind bert: the checkpoint of a small BERT. Default: made up.")
@click.option("--seed", type=int, metavar="N", help="Seed of the made-up numbers. Default: 0.")
@click.option("--out", help="The file to write: .xlsx, .html or .md.", **PATH)
@click.option("--show", is_flag=True, help="Print the steps even with --out.")
@shared
@click.pass_context
def worksheet(
    ctx: click.Context, records: Path | None, kind: str, tokens: str, out: Path | None, show: bool, **options: Any
) -> None:
    """Show one attention computation step by step.

    With RECORDS, a file that seen.save(...) wrote, it is one weight of a model, with the model's own numbers:
    headwise worksheet run.hw --layer 3 --head 5 --row it --col animal

    Otherwise the numbers are made up, small, and the same each time. An .xlsx file is a workbook with one sheet per
    step and live formulas: change a number and all later steps are recomputed. Without --out the steps are printed.

    multi-head is the attention of Vaswani et al. (2017); latent uses a few learned vectors that attend to the text
    (Perceiver, Set Transformer); mla is DeepSeek's attention with compressed keys and values; bert is a layer of BERT.
    """
    given = {name: value for name, value in options.items() if value is not None}
    asked = {name: given.pop(name) for name in _OF_RECORDS if name in given}
    if records is None and asked:
        raise ArgumentError(
            "--{option}: only a weight of RECORDS has this option. Received: no RECORDS", option=min(asked)
        )
    if records is not None:
        typed = [name for name in ("kind", "tokens") if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
        for name in [*typed, *given]:
            raise ArgumentError(
                "--{option}: only made-up numbers have this option. Received: RECORDS={records}",
                option=name.replace("_", "-"),
                records=records,
            )
        for name in ("row", "col"):
            if name not in asked:
                raise ArgumentError(
                    "--{name}: expected a token or a position of RECORDS. Received: no --{name}", name=name
                )
    for name in given:
        if kind not in _ONLY.get(name, KINDS):
            raise ArgumentError(
                "--{option}: only --kind {only} has this option. Received: --kind={kind}",
                option=name.replace("_", "-"),
                only=_ONLY[name][0],
                kind=kind,
            )
    if "model" in given and (extra := given.keys() - {"model", "mask"}):
        raise ArgumentError(
            "--{option}: only made-up numbers have this option. Leave it or --model out",
            option=min(extra).replace("_", "-"),
        )
    if out is not None:
        if out.suffix.lower() not in SUFFIXES:
            raise ArgumentError(
                "--out {out}: expected a file name that ends in {suffixes}", out=out, suffixes=", ".join(SUFFIXES)
            )
        check_writable(out, "--out")
        if out.suffix.lower() == ".xlsx":
            from headwise.worksheet.xlsx import load_xlsxwriter

            load_xlsxwriter()  # fail before the work begins
    sheet = _sheet(kind, tokens, given) if records is None else _make_from_records(records, asked)
    if out is None or show:
        sheet.show()
    if out is not None:
        sheet.write(out)
        echo(said("Wrote {out} ({size}, {count} steps).", out=out, size=size(out.stat().st_size), count=len(sheet)))


def _make_from_records(path: Path, asked: dict[str, Any]) -> Worksheet:
    """Make the worksheet of one attention weight in a file of records (recorded attention)."""
    from headwise.records.storage import load
    from headwise.worksheet import of_weight

    seen = load(path, verify=None)
    if "call" in asked:
        seen = seen.call(asked.pop("call"))
    for name in asked.keys() & {"layer", "row", "col"}:
        if asked[name].isdecimal():
            asked[name] = int(asked[name])
    return of_weight(seen, **asked)


def _sheet(kind: str, tokens: str, given: dict[str, Any]) -> Worksheet:
    mask = _parse_mask(given.pop("mask", "causal" if kind == "mla" else "none"), kind)
    return _make_from_model(given["model"], tokens, mask) if "model" in given else _made_up(kind, tokens, mask, given)


def _made_up(kind: str, tokens: str, mask: Mask | None, given: dict[str, Any]) -> Worksheet:
    from headwise.worksheet.demo import demo, split

    if "positions" in given:
        given["scheme"] = given.pop("positions")
    if "memory" in given:
        given["memory"] = split(given["memory"])
    return demo(kind, split(tokens), mask=mask, **given)


def _make_from_model(model: str, text: str, mask: Mask | None) -> Worksheet:
    """Make the worksheet of a small checkpoint on a text, tokenized by its own tokenizer."""
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
    """Parse the option --mask, such as `window:2,0`, as a mask; None for "none". Raises ArgumentError."""
    allowed = [form for form, kinds in _MASKS.items() if kind in kinds]
    name, values = parse_mask(given, allowed, where=f"with --kind {kind} ")
    if name == "none":
        return None

    from headwise import masks

    mask: Mask = getattr(masks, name)(*values)
    return mask
