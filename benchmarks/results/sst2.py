"""SST-2: film reviews, good or bad: MiniLM fine-tuned by headwise and by a plain loop, and a model from scratch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Result, Table

SEED = 0
SCORES = {"accuracy": 4, "macro_f1": 4}
FINETUNE = Path(__file__).parents[1] / "finetune.py"
OURS, PLAIN = "headwise", "transformers, plain loop"  # as finetune.py calls them
CLOCKS = {"seconds": "seconds", "processor_seconds": "processor seconds"}


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    data.sst2(source, folder)
    if quick:
        data.shorten(folder, 60)
    columns = ("train.tsv", "--text", "1", "--label", "2", "--validation", "dev.tsv", "--seed", f"{SEED}")
    trained = commands.train("classify", *columns, "--model", "scratch", folder=folder, quick=quick)
    scratch = commands.evaluate("test.tsv", folder=folder)

    options = ("--data", ".", "--seed", f"{SEED}", *(("--epochs", "1") if quick else ()))
    compared = commands.run(
        "python benchmarks/finetune.py",
        [sys.executable, str(FINETUNE), *options, "--json", "compared.json"],
        options,
        folder,
    )
    rows = json.loads((folder / "compared.json").read_text(encoding="utf-8"))["rows"]
    ratios = {name: rows[OURS][name] / rows[PLAIN][name] for name in CLOCKS}
    return Result(
        name="sst2",
        title="film reviews, good or bad",
        data=(
            "The data are split into 6,920 sentences for training, 872 for choosing the best epoch, and "
            f"{scratch.rows:,} for the test. The files have no header, so columns are given by number. MiniLM (22 "
            "million weights) is fine-tuned by `tasks.Classify.fit` and by a plain transformers loop: same model, "
            "batches of 32, AdamW at a constant 5e-5, 3 epochs. The plain loop uses random batches padded to the "
            "longest sentence, and keeps the last weights. headwise puts sentences of similar length into a batch and "
            "validates after each epoch; its time includes validation. Both train alternately, a few steps at a time, "
            "in one process, so other load on the machine slows both equally."
        ),
        commands=(compared.command, trained.command, scratch.ran.command),
        goals=(
            page.at_least("accuracy, fine-tuned", rows[OURS]["accuracy"], 0.885, 4),
            page.at_most("time, share of the plain loop's", ratios["seconds"], 0.6, 2, " ×"),
            page.at_least("accuracy, from scratch", scratch.scores["accuracy"], 0.80, 4),
        ),
        tables=(
            Table(
                ("3 epochs", "accuracy", *(f"{said}, × plain" for said in CLOCKS.values())),
                tuple(
                    (
                        name,
                        f"{row['accuracy']:.4f}",
                        *(f"{row[clock]:.0f}, {row[clock] / rows[PLAIN][clock]:.2f}" for clock in CLOCKS),
                    )
                    for name, row in rows.items()
                ),
            ),
            scratch.table(SCORES, ours="headwise, from scratch"),
        ),
        about=machine.about(SEED),
        figures={"compared": rows, "from scratch": {"training": trained.figures(), "test": scratch.figures()}},
        notes=(times(trained, scratch, "From scratch"),),
    )
