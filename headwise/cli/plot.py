"""`headwise plot`: draws a figure for a paper from a file of records (recorded attention)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import check_writable, size
from headwise.cli.layers import choose_layers, parse_layers
from headwise.cli.places import parse_place, parse_places
from headwise.cli.shared import PATH, shared
from headwise.errors import ArgumentError
from headwise.extras import need
from headwise.files import check_there
from headwise.language import echo, said

if TYPE_CHECKING:
    from headwise.records import Seen

KINDS = ("heatmap", "heads", "lines", "surface3d", "text")
SUFFIXES = (".png", ".svg", ".pdf")

# Options that only some kinds of figures have (by the names of their Python parameters) -> these kinds.
_ONLY = {
    "layer": ("heatmap", "lines", "surface3d", "text"),
    "head": ("heatmap", "lines", "surface3d", "text"),
    "layers": ("heads",),
    "rows": ("heatmap", "lines", "surface3d", "text"),
    "cols": ("heatmap", "lines", "surface3d", "text"),
    "row": ("lines", "text"),
    "col": ("lines", "text"),
    "values": ("heatmap",),
    "hide_sink": ("heatmap", "lines", "text"),
    "cmap": ("heatmap", "heads", "surface3d", "text"),
}


@click.command(short_help="Draw a figure for a paper from a file of records.")
@click.argument("path", type=click.Path(path_type=Path), metavar="RECORDS")
@click.option("--kind", type=click.Choice(KINDS), default="heatmap", help="What to draw.")
@click.option("--layer", metavar="N", help="The layer: its number, its name, or a part of its name.")
@click.option(
    "--head",
    metavar="N",
    help='The head: its number, or "mean" for the mean of all heads; --kind lines also takes several: 1,5. Default: 0.',
)
@click.option("--layers", metavar="LIST", help="With --kind heads: the layers, such as 0,2-4. Default: all.")
@click.option("--call", type=int, metavar="N", help="The forward pass, if the file has several.")
@click.option("--example", type=int, metavar="N", default=0, help="The example of the batch.")
@click.option("--rows", metavar="LIST", help="The queries to draw, such as 0:20, 3,5,9 or it,animal. Default: all.")
@click.option("--cols", metavar="LIST", help="The keys to draw. Default: all.")
@click.option(
    "--row", metavar="TOKEN", help="With --kind text or lines: the query whose attention is shown: 9, it, or it:2."
)
@click.option("--col", metavar="TOKEN", help="With --kind text or lines: the key whose received attention is shown.")
@click.option("--scale", type=click.Choice(("linear", "root", "log")), help="The scale of the colours.")
@click.option(
    "--values/--no-values", default=None, help="Print the weights in the cells. Default: up to 20 × 20 cells."
)
@click.option("--hide-sink", is_flag=True, default=None, help="Leave out the first key; scale colours to the others.")
@click.option("--cmap", metavar="NAME", help="Colours: ember, or any colour map of matplotlib.")
@click.option("--title", metavar="TEXT", help='The title above the figure; "" = no title.')
@click.option("--width", type=float, metavar="INCHES", help="The width of the figure, such as 3.3 for a column.")
@click.option("--out", default=Path("attention.pdf"), help="The figure to write: .pdf, .svg or .png.", **PATH)
@shared
def plot(path: Path, kind: str, layers: str | None, call: int | None, out: Path, **options: Any) -> None:
    """Draw the attention in RECORDS, a file that seen.save(...) wrote.

    heatmap draws one head; heads draws all heads as small maps; lines draws queries and keys in two columns, with each
    weight as a line; surface3d draws one head as a 3-D surface; text draws the running text, each token shaded by its
    weight.
    """
    given = {name: value for name, value in {**options, "layers": layers}.items() if value is not None}
    for name in given:
        if kind not in _ONLY.get(name, KINDS):
            raise ArgumentError(
                "--{option}: only --kind {listed} has it. Received: --kind={kind}",
                option=name.replace("_", "-"),
                listed=_listed(_ONLY[name]),
                kind=kind,
            )
    if kind == "text" and ("row" in given) == ("col" in given):
        raise ArgumentError("--kind text: expected exactly one of --row (a query) and --col (a key)")
    for name in ("rows", "cols"):
        if name in given:
            given[name] = parse_places(given[name], f"--{name}")
    for name in ("row", "col"):
        if name in given:
            given[name] = parse_place(given[name])
    if "head" in given:
        several = kind == "lines" and "," in given["head"]
        given["head"] = [*map(_parse_head, given["head"].split(","))] if several else _parse_head(given["head"])
    ranges = parse_layers(given.pop("layers", None))
    if out.suffix.lower() not in SUFFIXES:
        raise ArgumentError(
            "--out {out}: expected a file name that ends in {suffixes}", out=out, suffixes=", ".join(SUFFIXES)
        )
    check_writable(out, "--out", [path], "the input file RECORDS")
    check_there(path)
    need("headwise plot", "plot")

    import headwise.plot
    from headwise.records.storage import load

    seen = load(path, verify=None)
    seen = seen if call is None else seen.call(call)
    if ranges is not None:
        given["layers"] = choose_layers(ranges, len(seen.layers))
    if kind != "heads":
        given["layer"] = _choose_layer(seen, given.get("layer"))
        _find_tokens(seen, given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        getattr(headwise.plot, kind)(seen, **given, out=out)
    for warning in caught:
        echo(said("headwise: {message}", message=warning.message), err=True)
    echo(said("Wrote the figure {out} ({size}).", out=out, size=size(out.stat().st_size)))


def _find_tokens(seen: Seen, given: dict[str, Any]) -> None:
    """Replace texts of tokens in --row, --col, --rows and --cols by the positions of the tokens."""
    from headwise.plot.subject import find_axes
    from headwise.text.places import find_position

    sides = find_axes(seen, given["layer"], given["example"])
    for (name, several), tokens in zip((("row", "rows"), ("col", "cols")), sides, strict=True):
        if isinstance(given.get(name), str):
            given[name] = find_position(given[name], tokens, f"--{name}")
        if isinstance(given.get(several), list):
            given[several] = [find_position(each, tokens, f"--{several}") for each in given[several]]


def _listed(kinds: Sequence[str]) -> str:
    *others, last = kinds
    return f"{', '.join(others)} or {last}" if others else last


def _parse_head(given: str) -> int | str:
    if given != "mean" and not given.isdecimal():
        raise ArgumentError('--head: expected a number, or "mean". Received: --head={given!r}', given=given)
    return given if given == "mean" else int(given)


def _choose_layer(seen: Seen, given: str | None) -> int | str | None:
    if given is None and len(seen.layers) > 1:
        raise ArgumentError(
            "--layer: the file has {count} layers. Add --layer with a number, 0 … {last}, or a name",
            count=len(seen.layers),
            last=len(seen.layers) - 1,
        )
    return int(given) if given is not None and given.isdecimal() else given
