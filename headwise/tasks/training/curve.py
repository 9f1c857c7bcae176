"""Writes a learning curve as a table (curve.csv) and as a picture (curve.png)."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.files import writing
from headwise.language import Sentence, language, said

_TRAINING, _VALIDATION, _SCORE, _BEST = "#7a8794", "#1f5fbf", "#c2571a", "#2b2b2b"
_CHINESE = (  # fonts, the first that is installed is used; `headwise.plot.fonts` is above this layer
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC", "Hiragino Sans GB"),
    *("Microsoft YaHei", "SimHei", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
)


@dataclass
class Row:
    """A point of the learning curve.

    Args:
        epoch: the number of finished epochs, with fractions.
        step: the number of finished steps.
        loss: the mean training loss since the previous row.
        learning_rate: the learning rate at this step.
        scores: the scores that a validation logged there, if there was one.
    """

    epoch: float
    step: int
    loss: float
    learning_rate: float
    scores: dict[str, float] = field(default_factory=dict)


def write(rows: Sequence[Row], path: Path) -> None:
    """Write a line of CSV for each row. The columns of scores are empty where there was no validation.

    Raises:
        FileError: the file cannot be written.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    with writing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["epoch", "step", "loss", "learning_rate", *names])
        for row in rows:
            scores = [f"{row.scores[name]:.6g}" if name in row.scores else "" for name in names]
            table.writerow([f"{row.epoch:.4g}", row.step, f"{row.loss:.6g}", f"{row.learning_rate:.6g}", *scores])


def draw(rows: Sequence[Row], path: Path, best: tuple[str, int] | None) -> None:
    """Draw training and validation loss, the score that selects the best weights, and the best weights themselves.

    `best`: the name of the score that selects them, and their epoch, from 1.

    Raises:
        FileError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.font_manager import fontManager

    there = {entry.name for entry in fontManager.ttflist}
    font = next((name for name in _CHINESE if name in there), None)
    say = said if font or language() == "en" else str  # without a font the letters would be boxes
    with rc_context({"font.family": [font, "sans-serif"] if font and language() != "en" else "sans-serif"}):
        _draw(rows, path, best, say)


def _draw(rows: Sequence[Row], path: Path, best: tuple[str, int] | None, say: Callable[[str], str]) -> None:
    from matplotlib.figure import Figure

    validated = [row for row in rows if "validation_loss" in row.scores]
    name, best_epoch = best or (None, 0)
    scored = [row for row in rows if name in row.scores]
    two = bool(scored) and name != "validation_loss"
    figure = Figure(figsize=(10.0 if two else 5.6, 3.6), layout="constrained")
    losses, *others = figure.subplots(1, 2 if two else 1, squeeze=False)[0]
    losses.plot([row.epoch for row in rows], [row.loss for row in rows], color=_TRAINING, lw=1.2, label=say("training"))
    _points(losses, validated, "validation_loss", _VALIDATION, say("validation"))
    losses.set(title=say("loss"), xlabel="epoch")
    finite = [value for value in [row.loss for row in rows] if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > 20 * min(finite):
        losses.set_yscale("log")
    for axes in others:
        _points(axes, scored, str(name), _SCORE, say("validation"))
        axes.set(title=say(str(name).replace("_", " ")), xlabel="epoch")
    best_told = Sentence("best: {score:.4g}, epoch {epoch:g}")
    for row in [row for row in scored if math.ceil(row.epoch) == best_epoch]:
        for axes in (losses, *others):
            axes.axvline(row.epoch, color=_BEST, lw=0.8, ls=(0, (3, 3)), zorder=0)
        (others[0] if others else losses).plot(
            [row.epoch], [row.scores[str(name)]], "o", ms=9, mfc="none", mec=_BEST,
            label=say(best_told.format(score=row.scores[str(name)], epoch=row.epoch)),
        )  # fmt: skip
    for axes in (losses, *others):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", lw=0.7)
        axes.set_axisbelow(True)
        axes.set_xlim(left=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=9)
    with writing(path) as part:
        figure.savefig(part, dpi=150, format="png")


def _points(axes: Any, rows: Sequence[Row], name: str, color: str, label: str) -> None:
    if rows:
        values = [row.scores[name] for row in rows]
        axes.plot([row.epoch for row in rows], values, "o-", color=color, lw=1.6, ms=4, label=label)
