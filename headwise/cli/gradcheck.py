"""`headwise gradcheck`: checks whether the gradients of a module are correct."""

from __future__ import annotations

from pathlib import Path

import click

from headwise.cli.compare import build
from headwise.cli.output import STDOUT, json_option, print_report, progress_bar, write_json
from headwise.cli.shared import COUNT, shared
from headwise.doctor.targets.places import place_of

WRONG = 1


@click.command(short_help="Check the gradients of a module against numerical ones.")
@click.argument("target", metavar="FILE.PY:CLASS")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the constructor.")
@click.option("--spec", "stated", multiple=True, metavar="NAME=VALUE", help="A known property, such as heads=8.")
@click.option("--samples", default=40, help="How many elements of each tensor to check.", **COUNT)
@click.option("--all", "everything", is_flag=True, help="Check all elements of all tensors.")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the inputs and of the sampling.")
@json_option
@shared
def gradcheck(
    target: str,
    settings: tuple[str, ...],
    stated: tuple[str, ...],
    samples: int,
    everything: bool,
    seed: int,
    json_path: Path | None,
) -> int:
    """Compare a module's gradients with numerical ones in float64, for its inputs and its parameters.

    The file is imported, so its code is executed. Exit code 1 means that a gradient is wrong.
    """
    place_of(target)  # before torch is imported

    import headwise
    from headwise.doctor.gradients.gradcheck import gradcheck as run
    from headwise.doctor.targets.examine import parse_spec
    from headwise.doctor.targets.load import parse

    parsed, spec = parse(target, settings), parse_spec(stated)
    module = build(parsed)
    with progress_bar() as tell:
        found = run(module, spec=spec, sampled=None if everything else samples, seed=seed, progress=tell)
    if json_path != STDOUT:
        print_report(found)
    if json_path is not None:
        write_json(json_path, "--json", {"headwise": headwise.__version__, **found.to_dict()})
    return 0 if found.right else WRONG
