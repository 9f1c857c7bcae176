"""Makes notes on why the result of a training is unreliable: one sentence for each reason, with advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from headwise.errors import ArgumentError
from headwise.language import Sentence, join
from headwise.models.chinese import find_way
from headwise.tasks.rows.labels import read_number

if TYPE_CHECKING:
    from headwise.tasks.rows.tables import Data
    from headwise.tasks.scores import Scores

# With 20 rows one row is 5 points of accuracy, and chance alone moves a score by about 10 (a standard deviation of a
# share of 0.7): with fewer, the best epoch is a matter of luck.
ENOUGH = 20

_SHOWN = 5  # labels named in one sentence


def on_characters(added: Sequence[str]) -> tuple[str, ...]:
    """Return a note on the characters of the data that were added to a pretrained model, and have no meaning yet."""
    if not added:
        return ()
    told = Sentence(
        "{count} characters that the model does not know were added to it, with vectors of random words to begin with"
    ).format(count=len(added))
    if not any("\u3400" <= piece[-1] <= "\u9fff" for piece in added):
        return (told,)
    better = Sentence("for Chinese, a model that reads it learns more: {way}").format(way=find_way())
    return (join((told, better), "; "),)


def on_validation(training: Data, held_out: Data, *, examples: int, by: str | None) -> tuple[str, ...]:
    """Return sentences on why the held-out rows are unsuitable to choose the best weights; none if they are suitable.

    Args:
        examples: the number of examples that the task makes from `held_out`.
        by: the column of labels, if there is one.

    Raises:
        ArgumentError: no held-out row has a label of the training data.
    """
    found = []
    if examples < ENOUGH:
        found.append(
            Sentence(
                "the validation part has only {rows} row{s}, so its scores are mostly chance: give more rows, hold out "
                "more of them (validation_share), or give others (validation)"
            ).format(rows=examples, s="" if examples == 1 else "s")
        )
    if by is not None:
        labels, there = dict.fromkeys(training.columns[by]), {read_number(str(each)) for each in held_out.columns[by]}
        missing = [label for label in labels if read_number(str(label)) not in there]
        if len(missing) == len(labels):
            raise ArgumentError(
                Sentence(
                    "{name}: expected labels of the training data, {labels}, in the rows to validate on. Received: "
                    "only {received}"
                ).format(
                    name=held_out.name,
                    labels=_listed(missing, " or "),
                    received=_listed(list(dict.fromkeys(held_out.columns[by])), " and "),
                )
            )
        if missing:
            found.append(
                Sentence(
                    "the validation part has no row with the label {labels}, so its scores say nothing of it: give "
                    "more rows with it"
                ).format(labels=_listed(missing, " or "))
            )
    return tuple(found)


def on_share(learned: int, held_out: int, share: float) -> tuple[str, ...]:
    """Return a note if `validation_share` (`share`) is over 0.5 and holds out more rows than it leaves for training.

    Validation data from another file may have more rows than the training data without a note.
    """
    if share <= 0.5 or learned >= held_out:
        return ()
    told = "only {rows} row{s} {are} learned from, and {held_out} are held out: choose a lower validation_share"
    return (
        Sentence(told).format(
            rows=learned, s="" if learned == 1 else "s", are="is" if learned == 1 else "are", held_out=held_out
        ),
    )


def on_scores(scores: Scores, compared_by: Sequence[tuple[str, Literal["max", "min"]]]) -> tuple[str, ...]:
    """Return a note if the model beats some baseline in no score. It names the first such baseline."""
    for name, baseline in scores.baselines.items():
        common = [(score, mode) for score, mode in compared_by if score in scores.values and score in baseline]
        sign = {"max": 1, "min": -1}
        if common and not any(sign[mode] * (scores.values[score] - baseline[score]) > 0 for score, mode in common):
            score = common[0][0]
            return (
                Sentence(
                    "the model does not beat a trivial answer, {name}: {score} {reached:.4g} against {trivial:.4g}. "
                    "Give more rows, train longer (epochs), or look for mistakes in the data"
                ).format(name=name, score=score, reached=scores.values[score], trivial=baseline[score]),
            )
    return ()


def _listed(labels: Sequence[str], joint: str) -> Sentence:
    more = [Sentence("{count} more").format(count=len(labels) - _SHOWN)] if len(labels) > _SHOWN else []
    return join([*map(repr, labels[:_SHOWN]), *more], joint)
