"""`headwise compare`: compares two attention modules, and finds the first operation where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.output import STDOUT, json_option, print_report, progress_bar, write_json
from headwise.cli.shared import shared
from headwise.doctor.targets.places import place_of
from headwise.language import echo, said

if TYPE_CHECKING:
    from torch import nn

    from headwise.doctor.targets.load import Target

DIFFERENT = 1


@click.command(short_help="Compare two attention modules that have the same weights.")
@click.argument("first", metavar="FILE.PY:CLASS")
@click.argument("second", metavar="OTHER")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the constructor.")
@click.option("--set-other", "settings_other", multiple=True, metavar="NAME=VALUE", help="The same for OTHER.")
@click.option("--spec", "stated", multiple=True, metavar="NAME=VALUE", help="A known property, such as heads=8.")
@click.option("--spec-other", "stated_other", multiple=True, metavar="NAME=VALUE", help="The same for OTHER.")
@json_option
@shared
def compare(
    first: str,
    second: str,
    settings: tuple[str, ...],
    settings_other: tuple[str, ...],
    stated: tuple[str, ...],
    stated_other: tuple[str, ...],
    json_path: Path | None,
) -> int:
    """Compare two attention modules with the same weights.

    OTHER is another FILE.PY:CLASS, or one of torch, headwise, keras or a transformers model (hf:bert, hf:gpt2,
    hf:llama, hf:vit …), which is built in the same size. Calls both with many shapes and masks, and names the first
    operation whose results differ. The files are imported, so their code is executed. Exit code 1 means that the two
    modules compute different results.
    """
    for each in (first, second):
        if ".py" in each:  # before torch is imported
            place_of(each)
    from headwise.doctor.comparing.peers import NAMES, is_peer
    from headwise.errors import ArgumentError

    if not is_peer(second) and ":" not in second and not second.endswith(".py"):
        raise ArgumentError(
            "OTHER: expected FILE.PY:CLASS or one of {names}. Received: OTHER={second!r}",
            names=", ".join(NAMES),
            second=second,
        )
    if is_peer(second) and (settings_other or stated_other):
        option = "--set-other" if settings_other else "--spec-other"
        raise ArgumentError(
            "{option}: OTHER must be a FILE.PY:CLASS, because {second} is built in the size of the first module. "
            "Received: OTHER={second!r}. Leave {option} out",
            option=option,
            second=second,
        )

    import headwise
    from headwise.doctor.comparing.compare import compare as run
    from headwise.doctor.targets.examine import parse_spec
    from headwise.doctor.targets.load import parse

    target = parse(first, settings)
    other = second if is_peer(second) else parse(second, settings_other)
    spec, spec_other = parse_spec(stated), parse_spec(stated_other)
    mine = build(target)
    theirs = other if isinstance(other, str) else build(other)
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


def build(target: Target) -> nn.Module:
    """Print which module is made, and make it. Raises TookTooLong if its constructor does not return."""
    from headwise.doctor.comparing.side import LONGEST
    from headwise.doctor.limits import time_limit

    echo(said("headwise: importing {place} (this executes its code)", place=target.place), err=True)
    with time_limit(LONGEST):
        return target.build()
