"""scikit-learn's handwritten digits, and which of ten descriptions belongs to each, in English and in Chinese."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Goal, Result, Table

SEED = 0
SCORES = {
    "image_to_text_recall@1": 3,
    "text_to_image_recall@1": 3,
    "text_to_image_recall@5": 3,
    "matching_accuracy": 3,
}


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    """`source` is not read: the digits come with scikit-learn."""
    data.digits(folder)
    if quick:
        data.shorten(folder, 100)
    written, goals, tables, figures, notes = list[str](), list[Goal](), list[Table](), {}, list[str]()
    for language in ("english", "chinese"):
        options = ("--image", "image", "--text", language, "--image-size", "8", "--patch-size", "2", "--channels", "1")
        trained = commands.train(
            "match", "train.csv", *options, "--seed", f"{SEED}", folder=folder, quick=quick, out=language
        )
        found = commands.evaluate("test.csv", folder=folder, out=language)
        written += [trained.command, found.ran.command]
        goals += [
            page.at_least(f"recall@1, image to text, {language}", found.scores["image_to_text_recall@1"], 0.95),
            page.at_least(f"recall@1, text to image, {language}", found.scores["text_to_image_recall@1"], 0.95),
        ]
        tables.append(found.table(SCORES, ours=f"headwise, {language}"))
        figures[language] = {"training": trained.figures(), "test": found.figures()}
        notes.append(times(trained, found, language.capitalize()))
    return Result(
        name="digits",
        title="handwritten digits and what they are called",
        data=(
            "1,797 images of 8 × 8 pixels, four fifths for training and one fifth for the test. The text of an image "
            "is, for example, “the handwritten digit three” or “手写的数字三”. Any image of a three is correct "
            "for that text."
        ),
        commands=tuple(written),
        goals=tuple(goals),
        tables=tuple(tables),
        about=machine.about(SEED),
        figures=figures,
        notes=tuple(notes),
    )
