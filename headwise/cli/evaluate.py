"""`headwise evaluate`: scores a trained task on new rows, beside the scores of trivial baselines."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headwise.cli.output import STDOUT, json_option, working, write_json
from headwise.cli.shared import encoding, shared
from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.tasks.training.folder import check_there


@click.command(short_help="Score a trained task on new data.")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("data", metavar="DATA")
@json_option
@encoding
@shared
def evaluate(run: Path, data: str, json_path: Path | None) -> None:
    """Score a trained task on DATA, a file that contains the correct answers.

    RUN is the folder that headwise train wrote. DATA has the columns that the task was trained on. Prints the scores
    beside those of trivial baselines and, for a classifier, its confusion table.
    """
    if json_path is not None and os.path.realpath(json_path) == os.path.realpath(data):
        raise ArgumentError(
            Sentence("--json {path}: this is the input file DATA. Choose another file").format(path=json_path)
        )
    check_there(run, data)

    import headwise
    from headwise import tasks
    from headwise.cli.scores import print_scores

    with working(Sentence("loading {name}").format(name=run)) as say:
        task = tasks.load(run)
        say(Sentence("scoring {data}").format(data=data))
        scores = task.evaluate(data)
    if json_path != STDOUT:
        print_scores(scores, Sentence("{task} on {data}").format(task=task.name, data=data))
    if json_path is not None:
        content = {"headwise": headwise.__version__, "task": task.name, "run": str(run), "data": data}
        write_json(json_path, "--json", {**content, **scores.to_json()})
