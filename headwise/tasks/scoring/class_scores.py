"""Accuracy, macro F1 and the confusion table, beside a baseline that always predicts the commonest label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_confusion_matrix,
    multiclass_f1_score,
)

from headwise.language import Sentence, join
from headwise.tasks.rows.labels import note_alike
from headwise.tasks.scores import Scores

_ALWAYS = Sentence("always {label!r}, the commonest in training")


def class_scores(
    truth: Sequence[str],
    called: Sequence[str],
    *,
    known: Sequence[str],
    commonest: str,
    left_out: Sequence[str] = (),
) -> Scores:
    """Compute the scores of predicted labels against the true labels.

    Macro F1 is the mean over the labels that are true or predicted for any row, with equal weights.

    Args:
        truth, called: the true and the predicted label of each row.
        known: the labels that can be predicted. Others in `truth` count as wrong, and are reported.
        commonest: the commonest label of the training data, which the baseline always predicts.
        left_out: notes on rows that were not scored.
    """
    unseen = Counter(label for label in truth if label not in set(known))
    labels = [*known, *sorted(unseen)]
    number = {label: i for i, label in enumerate(labels)}
    true = torch.tensor([number[label] for label in truth])
    said = torch.tensor([number[label] for label in called])
    confusion = multiclass_confusion_matrix(said, true, len(labels))
    return Scores(
        values=_values(said, true, len(labels)),
        count=len(truth),
        baselines={
            _ALWAYS.format(label=commonest): _values(torch.full_like(true, number[commonest]), true, len(labels))
        },
        labels=tuple(labels),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion.tolist()),
        left_out=(*left_out, *_said(unseen, known)),
    )


def recall(baseline: str) -> str:
    """Return the name of a baseline that was read from a file as the `Sentence` that it was."""
    found = re.fullmatch("always (.+), the commonest in training", baseline)
    return Sentence(baseline, str(_ALWAYS), {"label": found[1]}) if found else baseline


def _values(said: torch.Tensor, true: torch.Tensor, count: int) -> dict[str, float]:
    return {
        "accuracy": round(float(multiclass_accuracy(said, true, count, average="micro")), 6),  # float32
        "macro_f1": round(float(multiclass_f1_score(said, true, count, average="macro")), 6),
    }


def _said(unseen: Counter[str], known: Sequence[str]) -> tuple[str, ...]:
    if not unseen:
        return ()
    shown = [f"{label!r} ({count})" for label, count in unseen.most_common(5)]
    rows = unseen.total()
    return (
        Sentence("{rows} row{s} that the training data did not have, counted as wrong: {labels}").format(
            rows=rows,
            s="s have labels" if rows > 1 else " has a label",
            labels=join([*shown, "…"] if len(unseen) > 5 else shown),
        ),
        *note_alike([*known, *unseen]),
    )
