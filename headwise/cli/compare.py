"""`headwise compare`: do two attentions compute the same, and where do they part?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.files import check_writable
from headwise.cli.output import STDOUT, json_option, print_report, progress_bar, write_json

if TYPE_CHECKING:
    from torch import nn

    from headwise.doctor.targets.load import Target

DIFFERENT = 1


@click.command()
@click.argument("first", metavar="FILE.PY:CLASS")
@click.argument("second", metavar="OTHER")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the constructor.")
@click.option("--set-other", "settings_other", multiple=True, metavar="NAME=VALUE", help="The same, of OTHER.")
@click.option("--spec", "stated", multiple=True, metavar="NAME=VALUE", help="What need not be found out: heads=8.")
@click.option("--spec-other", "stated_other", multiple=True, metavar="NAME=VALUE", help="The same, of OTHER.")
@json_option
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def compare(
    first: str,
    second: str,
    settings: tuple[str, ...],
    settings_other: tuple[str, ...],
    stated: tuple[str, ...],
    stated_other: tuple[str, ...],
    json_path: Path | None,
) -> int:
    """Compare two attentions that hold the same weights.

    OTHER is another FILE.PY:CLASS, or torch, headwise, keras or a model of transformers (hf:bert, hf:gpt2, hf:llama,
    hf:vit …), built of the same size. Runs both over many shapes and masks, and names the first operation at which
    they part. The files are imported, so their code runs. Exit code 1 means that they do not compute the same.
    """
    if json_path is not None and json_path != STDOUT:
        check_writable(json_path, "--json")
    from headwise.doctor.comparing.peers import NAMES, is_peer
    from headwise.errors import ArgumentError

    if not is_peer(second) and ":" not in second and not second.endswith(".py"):
        raise ArgumentError(f"{second!r} is nothing to compare with: expected FILE.PY:CLASS, {', '.join(NAMES)}")
    if is_peer(second) and (settings_other or stated_other):
        option = "--set-other" if settings_other else "--spec-other"
        raise ArgumentError(f"{option} is for another FILE.PY:CLASS; {second} is built as large as the first")

    import headwise
    from headwise.doctor.comparing.compare import compare as run
    from headwise.doctor.targets.examine import parse_spec
    from headwise.doctor.targets.load import parse

    target = parse(first, settings)
    other = second if is_peer(second) else parse(second, settings_other)
    spec, spec_other = parse_spec(stated), parse_spec(stated_other)
    mine = _build(target)
    theirs = other if isinstance(other, str) else _build(other)
    names = (target.name, second if isinstance(other, str) else other.name)
    if names[0] == names[1]:
        names = (first, second)
    with progress_bar() as tell:
        found = run(mine, theirs, spec=spec, spec_other=spec_other, names=names, progress=tell)
    if json_path != STDOUT:
        print_report(found)
    if json_path is not None:
        write_json(json_path, "--json", {"headwise": headwise.__version__, **found.to_dict()})
    return 0 if found.same else DIFFERENT


def _build(target: Target) -> nn.Module:
    from headwise.doctor.comparing.side import LONGEST
    from headwise.doctor.limits import time_limit

    click.echo(f"headwise: importing {target.place} (its code runs here)", err=True)
    with time_limit(LONGEST):
        return target.build()
