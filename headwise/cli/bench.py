"""`headwise bench`: times the kernels on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.masks import parse_mask
from headwise.cli.output import STDOUT, json_option, progress_bar, write_json
from headwise.cli.shared import COUNT, shared
from headwise.errors import ArgumentError
from headwise.language import Sentence, echo, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from headwise.call import AttentionCall
    from headwise.kernels.measure import Contest
    from headwise.masks import Mask
    from headwise.tables import Table

AGAIN = 2  # how often a call is measured again on a busy machine
MASKS = ("none", "causal", "window:LEFT,RIGHT", "prefix:N", "documents:LENGTH", "big_bird")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@click.command(short_help="Time one attention call on every kernel that can run it.")
@click.option("--length", "lengths", multiple=True, help="Keys; may be repeated.  [default: 2048]", **COUNT)
@click.option("--queries", help="Queries. Default: as many as keys.", **COUNT)
@click.option("--heads", default=12, help="Query heads.", **COUNT)
@click.option("--kv-heads", help="Key and value heads. Default: as --heads.", **COUNT)
@click.option("--head-dim", default=64, help="The width of a head.", **COUNT)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", help="Of queries, keys and values.")
@click.option("--mask", default="causal", metavar="MASK", help=f"{', '.join(MASKS[:-1])} or {MASKS[-1]}.")
@click.option("--training", is_flag=True, help="Forward and backward.")
@click.option("--rounds", default=7, help="How often each kernel runs.", **COUNT)
@json_option
@shared
def bench(lengths: tuple[int, ...], json_path: Path | None, **asked: Any) -> None:
    """Run one call on every kernel that can, in turns, and say which one the plan takes.

    A time is the median of the rounds, and so are the ratios, with the least and the greatest in brackets. "Of the
    product" is the share of this machine's speed in a large matrix product of the same dtype, counting only what the
    mask allows.
    """
    parse_mask(asked["mask"], MASKS)
    content, tables = _contests(lengths or (2048,), **asked)
    if json_path is not None:
        write_json(json_path, "--json", content)
    if json_path != STDOUT:
        from headwise.cli.heads import print_whole

        for table in tables:
            print_whole(make_console(highlight=False), table)


def _contests(lengths: Sequence[int], rounds: int, **asked: Any) -> tuple[dict[str, Any], list[Table]]:
    import torch

    import headwise
    from headwise.call import make_call
    from headwise.kernels import speeds

    results, tables = [], []
    heads, width, trains, dtype = asked["heads"], asked["head_dim"], asked["training"], getattr(torch, asked["dtype"])
    with progress_bar() as tell, torch.set_grad_enabled(trains):
        for number, length in enumerate(lengths):
            tell(number, len(lengths), Sentence("{count:,} keys").format(count=length))
            keys = (1, asked["kv_heads"] or heads, length, width)
            shapes = ((1, heads, asked["queries"] or length, width), keys, keys)
            q, k, v = (torch.randn(shape).to(dtype).requires_grad_(trains) for shape in shapes)
            found = _steady(make_call(q, k, v, mask=_mask(asked["mask"], length)), rounds)
            results.append({"length": length, **asked, **dataclasses.asdict(found)})
            about = said(
                "{queries:,} × {keys:,}, {heads} heads of {width}, {dtype}, {mask}",
                queries=q.shape[2],
                keys=length,
                heads=heads,
                width=width,
                dtype=asked["dtype"],
                mask=asked["mask"],
            )
            tables.append(_table(about, "forward and backward" if trains else "forward", found))
    return {"headwise": headwise.__version__, "machine": speeds.name_machine(), "results": results}, tables


def _steady(call: AttentionCall, rounds: int) -> Contest:
    """Measure a call, and again if its rounds differ as they do on a busy machine; the steadiest contest counts."""
    from headwise.kernels.measure import STEADY, Contest, contest

    contests: list[Contest] = []
    while True:
        contests.append(contest(call, rounds))
        found = min(contests, key=Contest.unrest)
        if found.unrest() <= STEADY:
            return found
        times = f"{found.unrest():.1f}"
        if len(contests) > AGAIN:
            echo(
                said(
                    "headwise: the machine is busy, rounds take {times} times the quickest: run it again", times=times
                ),
                err=True,
            )
            return found
        echo(
            said("headwise: the machine is busy, rounds take {times} times the quickest: measuring again", times=times),
            err=True,
        )


def _mask(given: str, length: int) -> Mask | None:
    import torch

    from headwise import masks

    name, numbers = parse_mask(given, MASKS)
    if name == "none":
        return None
    if name == "documents":
        if not numbers[0]:
            raise ArgumentError(
                "--mask: expected documents of one token or more. Received: --mask={given!r}", given=given
            )
        return masks.documents(torch.arange(length) // numbers[0])
    made: Mask = getattr(masks, name)(*([length] if name == "big_bird" else numbers))
    return made


def _table(title: str, what: str, found: Contest) -> Table:
    from headwise.tables import Heading, Table

    rows = []
    for name, seconds in sorted(found.seconds.items(), key=lambda each: median(each[1])):
        ratio, least, most = found.times_chosen(name)
        spread = said("the plan's choice") if name == found.chosen else f"{ratio:.2f} ({least:.2f}–{most:.2f})"
        rows.append((name, f"{1000 * median(seconds):,.2f} ms", spread, f"{found.share(name):.0%}"))
    return Table(
        [Heading("kernel", "left"), *map(Heading, ("time", f"× {found.chosen}", "of the product"))],
        [rows],
        title=title,
        caption=said(
            "{what}; {count} rounds; a matrix product: {product:,.0f} GFLOP/s",
            what=said(what),
            count=len(found.product),
            product=median(found.product) / 1e9,
        ),
        notes=[f"{name} {said(reason)}" for name, reason in found.reasons.items()],
    )
