"""`headwise bench`: times the kernels on this machine, and measures the speeds by which the plan chooses one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headwise.cli.masks import parse_mask
from headwise.cli.output import STDOUT, json_option, progress_bar, write_json
from headwise.cli.shared import COUNT, shared
from headwise.errors import ArgumentError, FileError
from headwise.language import echo, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from headwise.call import AttentionCall
    from headwise.kernels.measure import Contest
    from headwise.kernels.speeds import Speeds
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
@click.option("--calibrate", is_flag=True, help="Measure this machine for plan(...), and keep the figures; a minute.")
@click.option("--show", is_flag=True, help="Print the figures that are kept.")
@click.option("--forget", is_flag=True, help="Remove the figures of this machine.")
@json_option
@shared
def bench(
    lengths: tuple[int, ...], calibrate: bool, show: bool, forget: bool, json_path: Path | None, **asked: Any
) -> None:
    """Run one call on every kernel that can, in turns, and say which one the plan takes.

    A time is the median of the rounds, and so are the ratios, with the least and the greatest in brackets. "Of the
    product" is the share of this machine's speed in a large matrix product of the same dtype, counting only what the
    mask allows.
    """
    if calibrate + show + forget > 1:
        raise ArgumentError("expected one of --calibrate, --show and --forget. Received: several")
    kept = calibrate or show or forget
    context = click.get_current_context()
    of_call = [
        name for name in ("lengths", *asked) if context.get_parameter_source(name) == ParameterSource.COMMANDLINE
    ]
    if kept and of_call:
        raise ArgumentError(
            "--calibrate, --show and --forget are about the machine, not about one call: expected no option of a call. "
            f"Received: {', '.join(of_call)}"
        )
    parse_mask(asked["mask"], MASKS)
    content, tables = _speeds(calibrate, forget) if kept else _contests(lengths or (2048,), **asked)
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
            tell(number, len(lengths), f"{length:,} keys")
            keys = (1, asked["kv_heads"] or heads, length, width)
            shapes = ((1, heads, asked["queries"] or length, width), keys, keys)
            q, k, v = (torch.randn(shape).to(dtype).requires_grad_(trains) for shape in shapes)
            found = _steady(make_call(q, k, v, mask=_mask(asked["mask"], length)), rounds)
            results.append({"length": length, **asked, **dataclasses.asdict(found)})
            about = f"{q.shape[2]:,} × {length:,}, {heads} heads of {width}, {asked['dtype']}, {asked['mask']}"
            tables.append(_table(about, "forward and backward" if trains else "forward", found))
    return {"headwise": headwise.__version__, "machine": speeds.key(), "results": results}, tables


def _steady(call: AttentionCall, rounds: int) -> Contest:
    """Measure a call, and again if its rounds differ as they do on a busy machine; the steadiest contest counts."""
    from headwise.kernels.measure import STEADY, Contest, contest

    contests: list[Contest] = []
    while True:
        contests.append(contest(call, rounds))
        found = min(contests, key=Contest.unrest)
        if found.unrest() <= STEADY:
            return found
        busy = f"half of the rounds take {found.unrest():.1f} times as long as the quickest, or longer"
        if len(contests) > AGAIN:
            echo(said(f"headwise: the machine is busy ({busy}); measure when nothing else runs"), err=True)
            return found
        echo(said(f"headwise: the machine is busy ({busy}); measuring again"), err=True)


def _mask(given: str, length: int) -> Mask | None:
    import torch

    from headwise import masks

    name, numbers = parse_mask(given, MASKS)
    if name == "none":
        return None
    if name == "documents":
        if not numbers[0]:
            raise ArgumentError(f"--mask: expected documents of one token or more. Received: --mask={given!r}")
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
            f"{said(what)}; {len(found.product)} rounds; a matrix product: {median(found.product) / 1e9:,.0f} GFLOP/s"
        ),
        notes=[f"{name} {said(reason)}" for name, reason in found.reasons.items()],
    )


def _speeds(calibrate: bool, forget: bool) -> tuple[dict[str, Any], list[Table]]:
    """Measure this machine's kernels, or forget the measurements; return (stored speeds as JSON data, tables)."""
    from headwise.kernels import measure, speeds

    if calibrate or forget:
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        with progress_bar() as tell:
            found = measure.calibrate(tell) if calibrate else None
        path = speeds.store(found)
        echo(said(f"headwise: {'wrote' if calibrate else 'removed this machine from'} {path}"), err=True)
        if calibrate and busy > 0.5:
            echo(said(f"headwise: the machine was busy (load {busy:.1f}); measure when nothing else runs"), err=True)
    try:
        content = speeds.stored()
    except speeds.BROKEN as error:
        raise FileError(f"{speeds.file()} cannot be read: {error!r}. Run headwise bench --calibrate again") from error
    if not content:
        echo(said("headwise: nothing was measured; plans reckon with nominal speeds"), err=True)
    tables = [_speed_table(key, each["measured"], speeds.read_speeds(each)) for key, each in content.items()]
    kept = speeds.file()
    return {"file": None if kept is None else str(kept), "machines": content}, tables


def _speed_table(key: str, measured: str, found: Speeds) -> Table:
    from headwise.kernels.measure import CALIBRATED
    from headwise.tables import Heading, Table

    rows = []
    for name, each in found.items():
        shares = [f"{each.shares[kernel]:.0%}" if kernel in each.shares else "–" for kernel in CALIBRATED]
        rows.append((name, f"{each.product / 1e9:,.0f} GFLOP/s", *shares))
    memory = f"memory {each.bytes / 1e9:.1f} GB/s; a call into torch {each.call * 1e6:.1f} µs"
    return Table(
        [Heading("calls", "left"), Heading("matrix product"), *map(Heading, CALIBRATED)],
        [rows],
        title=key,
        caption=f"{measured}; {memory}. Shares of the matrix product that large calls reach",
    )
