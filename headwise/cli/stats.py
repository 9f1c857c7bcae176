"""`headwise stats`: prints statistics of each head in a file of records (recorded attention)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from headwise.cli.files import check_writable, replaced
from headwise.cli.layers import choose_layers, parse_layers
from headwise.cli.output import progress_bar
from headwise.cli.places import parse_place
from headwise.cli.shared import PATH, shared
from headwise.files import check_there
from headwise.language import echo, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from headwise.records.summary import HeadSummary


@click.command(short_help="Print what each head in a file of records does.")
@click.argument("path", type=click.Path(path_type=Path), metavar="RECORDS")
@click.option("--layers", metavar="LIST", help="The layers to show, such as 0,2-4. Default: all.")
@click.option("--row", metavar="TOKEN", help="Only what heads look at from this query: 9, it, or it:2.")
@click.option("--csv", "csv_path", help="Write the rows as CSV.", **PATH)
@click.option("--json", "json_path", help="Write the rows as JSON.", **PATH)
@click.option("--verify", is_flag=True, help="First check the whole file against its checksums.")
@shared
def stats(
    path: Path, layers: str | None, row: str | None, csv_path: Path | None, json_path: Path | None, verify: bool
) -> None:
    """Print what each head in RECORDS does. RECORDS is a file that seen.save(...) wrote.

    One row per layer and head: entropy, distance, weight on the previous token and on the first token, and the
    strongest pair. Then the attention modules that were not recorded, and why.
    """
    ranges, place = parse_layers(layers), None if row is None else parse_place(row)
    check_there(path)
    files = {"--csv": csv_path, "--json": json_path}
    if csv_path is not None:
        check_writable(csv_path, "--csv", [path], "the file of the records")
    if json_path is not None:
        check_writable(json_path, "--json", [path], "the file of the records")
        check_writable(json_path, "--json", [csv_path] if csv_path else [], "the file of --csv")

    from headwise.cli.heads import print_unseen, print_whole
    from headwise.records.storage import load
    from headwise.records.summary import head_table, make_rows

    seen = load(path, verify=verify or None)
    chosen = seen.only(*choose_layers(ranges, len(seen.layers))) if len(seen) else seen
    rows: list[HeadSummary] = []
    with progress_bar() as tell:
        for number, record in enumerate(chosen, start=1):
            rows += make_rows(seen, record, place, called="--row")
            tell(number, len(chosen), "records")

    console = make_console(highlight=False)
    print_whole(console, head_table(rows, unknown=seen.unknown_tokens()))
    print_unseen(console, seen.coverage())
    for option, write in (("--csv", _write_csv), ("--json", _write_json)):
        if (target := files[option]) is not None:
            with replaced(target, option) as out:
                write(rows, out)
            echo(said("Wrote {target} ({count} rows).", target=target, count=len(rows)))


def _write_csv(rows: Sequence[HeadSummary], out: TextIO) -> None:
    """Write a header line, then one line per row; NaN becomes an empty field."""
    from headwise.records.summary import HeadSummary

    table = csv.writer(out, lineterminator="\n")
    table.writerow(HeadSummary.fields())
    table.writerows(_values(row).values() for row in rows)


def _write_json(rows: Sequence[HeadSummary], out: TextIO) -> None:
    """Write a list of objects; NaN becomes null."""
    json.dump([_values(row) for row in rows], out, indent=1)
    out.write("\n")


def _values(row: HeadSummary) -> dict[str, Any]:
    return {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in row.values().items()}
