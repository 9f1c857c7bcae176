"""ETTh1: a transformer's oil temperature and six loads, hourly; 336 hours tell the next 96."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Result

SEED, CONTEXT, HORIZON = 0, 336, 96
SCORES = {"mse": 3, "mae": 3, "mase": 3}
PUBLISHED = {
    "PatchTST, 512 hours (Nie et al. 2023)": ("0.370", "0.400", ""),
    "DLinear, 336 hours (Zeng et al. 2023)": ("0.375", "0.399", ""),
    "Informer (Zhou et al. 2021)": ("0.865", "0.713", ""),
}


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    data.etth1(source, folder, past=CONTEXT)
    options = ("--validation", "val.csv", "--context", f"{CONTEXT}", "--horizon", f"{HORIZON}", "--seed", f"{SEED}")
    trained = commands.train("forecast", "train.csv", *options, folder=folder, quick=quick)
    found = commands.evaluate("test.csv", folder=folder)
    return Result(
        name="etth1",
        title="seven series of a power transformer, 336 hours to 96",
        data=(
            "The standard split: 12 months for training, 4 for choosing the best epoch and 4 for the test. Each of "
            "the seven columns is predicted from its own past, standardised with the statistics of the training part. "
            f"The test part gives {found.rows:,} windows, one per hour. `val.csv` and `test.csv` begin with the 336 "
            "hours that their first window reads."
        ),
        commands=(trained.command, found.ran.command),
        goals=(
            page.at_most("MSE", found.scores["mse"], 0.370),
            page.at_most("MAE", found.scores["mae"], 0.405),
            page.at_most("training", trained.seconds / 60, 10, 1, " min"),
        ),
        tables=(found.table(SCORES, others=PUBLISHED),),
        about=machine.about(SEED),
        figures={"training": trained.figures(), "test": found.figures()},
        notes=(times(trained, found),),
    )
