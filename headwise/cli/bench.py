"""`headwise bench`: the kernels on this machine, and the speeds by which the plan chooses among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import check_writable
from headwise.cli.masks import parse_mask
from headwise.cli.output import STDOUT, json_option, progress_bar, write_json
from headwise.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from headwise.call import AttentionCall
    from headwise.kernels.measure import Contest
    from headwise.kernels.speeds import Speeds
    from headwise.masks import Mask
    from headwise.tables import Table

MASKS = ("none", "causal", "window:LEFT,RIGHT", "prefix:N", "documents:LENGTH", "big_bird")
DTYPES = ("float32", "bfloat16", "float16", "float64")
positive = click.IntRange(min=1)


@click.command()
@click.option(
    "--length", "lengths", type=positive, multiple=True, metavar="N", help="Keys; may be repeated.  [default: 2048]"
)
@click.option("--queries", type=positive, metavar="N", help="Queries. Default: as many as keys.")
@click.option("--batch", type=positive, default=1, metavar="N", help="Examples.")
@click.option("--heads", type=positive, default=12, metavar="N", help="Query heads.")
@click.option("--kv-heads", type=positive, metavar="N", help="Key and value heads. Default: as --heads.")
@click.option("--head-dim", type=positive, default=64, metavar="N", help="The width of a head.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", help="Of queries, keys and values.")
@click.option("--mask", "given", default="causal", metavar="MASK", help=f"{', '.join(MASKS[:-1])} or {MASKS[-1]}.")
@click.option("--training", is_flag=True, help="Forward and backward.")
@click.option("--rounds", type=positive, default=7, metavar="N", help="How often each kernel runs.")
@click.option("--calibrate", is_flag=True, help="Measure this machine for plan(...), and keep the figures; a minute.")
@click.option("--show", is_flag=True, help="Print the figures that are kept.")
@click.option("--forget", is_flag=True, help="Remove the figures of this machine.")
@json_option
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def bench(
    lengths: tuple[int, ...],
    given: str,
    rounds: int,
    calibrate: bool,
    show: bool,
    forget: bool,
    json_path: Path | None,
    **shape: Any,
) -> None:
    """Run one call on every kernel that can, in turns, and say which one the plan takes.

    A time is the median of the rounds, and so are the ratios, with the least and the greatest in brackets. "Of the
    product" is the share of this machine's speed in a large matrix product of the same dtype, counting only what the
    mask allows.
    """
    if calibrate + show + forget > 1:
        raise ArgumentError("expected one of --calibrate, --show and --forget. Received: several")
    parse_mask(given, MASKS)
    if json_path is not None and json_path != STDOUT:
        check_writable(json_path, "--json")
    if calibrate or show or forget:
        content, tables = _speeds(calibrate, forget)
    else:
        content, tables = _contests(lengths or (2048,), given, rounds, **shape)
    if json_path is not None:
        write_json(json_path, "--json", content)
    if json_path != STDOUT:
        _print(tables)


def _contests(
    lengths: Sequence[int], given: str, rounds: int, training: bool, **shape: Any
) -> tuple[dict[str, Any], list[Table]]:
    import torch

    import headwise
    from headwise.kernels import measure, speeds

    rows, tables = [], []
    with progress_bar() as tell, torch.set_grad_enabled(training):
        for number, length in enumerate(lengths):
            tell(number, len(lengths), f"{length:,} keys")
            call = _call(length, _mask(given, length), training=training, **shape)
            found = measure.contest(call, rounds)
            given_as = {"length": length, "mask": given, "training": training, **shape}
            rows.append(given_as | dataclasses.asdict(found))
            tables.append(_table(call, given, found))
    return {"headwise": headwise.__version__, "machine": speeds.key(), "results": rows}, tables


def _call(
    length: int,
    mask: Mask | None,
    *,
    queries: int | None,
    batch: int,
    heads: int,
    kv_heads: int | None,
    head_dim: int,
    dtype: str,
    training: bool,
) -> AttentionCall:
    import torch

    from headwise.call import make_call

    torch.manual_seed(0)
    q_shape = (batch, heads, queries or length, head_dim)
    k_shape = (batch, kv_heads or heads, length, head_dim)
    wanted = getattr(torch, dtype)
    q, k, v = (torch.randn(size).to(wanted).requires_grad_(training) for size in (q_shape, k_shape, k_shape))
    return make_call(q, k, v, mask=mask)


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


def _table(call: AttentionCall, given: str, found: Contest) -> Table:
    from statistics import median

    from headwise.tables import Heading, Table

    headings = [
        Heading("kernel", "left"),
        Heading("time"),
        Heading(f"× {found.chosen}"),
        Heading("of the product"),
    ]
    rows = []
    for name, seconds in sorted(found.seconds.items(), key=lambda each: median(each[1])):
        ratio, least, most = found.times_chosen(name)
        spread = "the plan's choice" if name == found.chosen else f"{ratio:.2f} ({least:.2f}–{most:.2f})"
        rows.append((name, f"{1000 * median(seconds):,.2f} ms", spread, f"{found.share(name):.0%}"))
    _, heads, q_len, k_len = call.shape
    about = [f"{q_len:,} × {k_len:,}", f"{heads} heads of {call.q.shape[3]}", str(call.q.dtype).removeprefix("torch.")]
    return Table(
        headings,
        [rows],
        title=", ".join([*about, given]),
        caption=f"{'forward and backward' if call.trains else 'forward'}; {len(found.product)} rounds; "
        f"a matrix product: {median(found.product) / 1e9:,.0f} GFLOP/s",
        notes=[f"{name} {reason}" for name, reason in found.reasons.items()],
    )


def _speeds(calibrate: bool, forget: bool) -> tuple[dict[str, Any], list[Table]]:
    """Measure, forget or show what is kept of this machine."""
    from headwise.kernels import measure, speeds

    if calibrate or forget:
        found: Speeds | None = None
        if calibrate:
            with progress_bar() as tell:
                found = measure.calibrate(tell)
        click.echo(f"headwise: wrote {speeds.store(found)}", err=True)
    try:
        content = speeds.stored()
    except speeds.BROKEN as error:
        raise FileError(f"{speeds.file()} cannot be read: {error!r}. Run headwise bench --calibrate again") from error
    tables = [_speed_table(key, each["measured"], speeds.speeds_of(each)) for key, each in content.items()]
    if not tables:
        click.echo("headwise: nothing was measured; plans reckon with nominal speeds", err=True)
    return {"file": str(speeds.file()), "machines": content}, tables


def _speed_table(key: str, measured: str, found: Speeds) -> Table:
    from headwise.kernels.measure import CALIBRATED
    from headwise.tables import Heading, Table

    one = next(iter(found.values()))
    rows = []
    for name, each in found.items():
        shares = [f"{each.shares[kernel]:.0%}" if kernel in each.shares else "–" for kernel in CALIBRATED]
        rows.append((name, f"{each.product / 1e9:,.0f} GFLOP/s", *shares))
    return Table(
        [Heading("calls", "left"), Heading("matrix product"), *map(Heading, CALIBRATED)],
        [rows],
        title=key,
        caption=f"{measured}; memory {one.bytes / 1e9:.1f} GB/s; a call into torch {one.call * 1e6:.1f} µs. "
        "Shares of the matrix product that large calls reach",
    )


def _print(tables: Sequence[Table]) -> None:
    from rich.console import Console

    from headwise.cli.heads import print_whole

    for table in tables:
        print_whole(Console(highlight=False), table)
