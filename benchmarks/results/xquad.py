"""XQuAD: questions whose answers stand in a paragraph, in English and in Chinese, learned from fewer than 1,000."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Goal, Result, Table

SEED = 0
SCORES = {"exact_match": 3, "f1": 3}


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    written, goals, tables, figures, notes = list[str](), list[Goal](), list[Table](), {}, list[str]()
    for language, name, start in (("en", "English", ()), ("zh", "Chinese", ("--model", "en-run", "--epochs", "3"))):
        (folder / language).mkdir(exist_ok=True)
        data.xquad(source, folder / language, language)
        if quick:
            data.shorten(folder / language, 60)
        out = f"{language}-run"
        words = ("answer", f"{language}/train.json", *start, "--seed", f"{SEED}")
        trained = commands.train(*words, folder=folder, quick=quick, out=out)
        found = commands.evaluate(f"{language}/test.json", folder=folder, out=out)
        written += [trained.command, found.ran.command]
        trivial = max(scores["f1"] for scores in found.baselines.values())
        goals.append(page.more_than(f"F1, {name}", found.scores["f1"], trivial))
        tables.append(found.table(SCORES, ours=f"headwise, {name}"))
        figures[language] = {"training": trained.figures(), "test": found.figures()}
        notes.append(times(trained, found, name))
    return Result(
        name="xquad",
        title="answers to questions, in English and in Chinese",
        data=(
            "XQuAD has 1,190 questions on 240 paragraphs. Four fifths of the paragraphs, drawn at random and the same "
            "in both languages, are for training; the questions on the others are the test. Published systems for "
            "XQuAD first train on SQuAD's 88,000 questions. This model does not, so it is compared with trivial "
            "baselines only. MiniLM is an English model; Chinese characters that it does not know are added as new "
            "tokens. The Chinese model starts from the English one and is trained on the Chinese paragraphs only."
        ),
        commands=tuple(written),
        goals=tuple(goals),
        tables=tuple(tables),
        about=machine.about(SEED),
        figures=figures,
        notes=tuple(notes),
    )
