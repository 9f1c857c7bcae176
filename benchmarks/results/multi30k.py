"""Multi30k: captions of pictures, English to German, from scratch; and beam search with a cache and without."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from sacrebleu.metrics import BLEU
from torch import Tensor

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Goal, Result, Table
from headwise import tasks
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.tasks.text.decoding import CachedSteps
from headwise.tasks.text.steps import Written

SEED, BEAMS, LIMIT = 0, 5, 60  # minutes
SCORES = {"BLEU": 2, "chrF": 2}
SIZE = ("--vocab-size", "6000", "--dim", "128", "--ffn-dim", "256", "--layers", "4", "--heads", "4")
STEPS = ("--epochs", "40", "--lr", "4e-3", "--warmup", "0.1", "--batch-tokens", "6000", "--dropout", "0.25")
ENDS = ("--average", "0.998", "--monitor-every", "0", "--time-limit", f"{LIMIT - 1}")
OPTIONS = (*SIZE, *STEPS, *ENDS, "--beams", f"{BEAMS}", "--length-penalty", "1", "--seed", f"{SEED}")


class AnewSteps:
    """The same model without a cache: each step reads all earlier tokens again."""

    def __init__(self, model: EncoderDecoder, source_ids: Tensor, source_real: Tensor) -> None:
        self.model, self.source_ids, self.source_real = model, source_ids, source_real
        self.memory = model.encode(source_ids, source_real)
        self.read = torch.empty(len(source_ids), 0, dtype=torch.int64)

    def __call__(self, ids: Tensor) -> Tensor:
        self.read = torch.cat([self.read, ids[:, None]], 1)
        hidden = self.model.decode(self.read, self.memory, self.source_real)[:, -1:]
        return self.model.logits(hidden, self.memory, self.source_ids, self.source_real)[:, 0]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self.read, self.source_ids = self.read[order], self.source_ids[order]
        self.memory, self.source_real = self.memory[order], self.source_real[order]


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    data.multi30k(source, folder)
    if quick:
        data.shorten(folder, 40)
    words = ("translate", "train.tsv", "--source", "en", "--target", "de", "--validation", "val.tsv")
    trained = commands.train(*words, *OPTIONS, folder=folder, quick=quick)
    found = commands.evaluate("test.tsv", folder=folder)
    task = tasks.Translate.load(folder / "run")
    rows = task.read(folder / "test.tsv", task.options)
    cached, seconds = timed(task, rows)
    anew, anew_seconds = timed(task, rows, anew=True)
    same = sum(a.ids == b.ids for a, b in zip(cached, anew, strict=True))
    apart = max(abs(a.log_probability - b.log_probability) for a, b in zip(cached, anew, strict=True))
    metric = BLEU()
    texts = [task.target_vocabulary.decode(each.ids) for each in cached]
    bleu = metric.corpus_score(texts, [rows.columns["target"]])
    return Result(
        name="multi30k",
        title="captions of pictures, English to German",
        data=(
            "29,000 pairs for training, 1,014 for choosing the best epoch, and the 1,000 of test2016 for the test. "
            "The text is used as it is: not lower-cased, not tokenised beforehand. The model and its subwords are "
            "trained from scratch."
        ),
        commands=(trained.command, found.ran.command),
        goals=(
            page.at_least("BLEU", found.scores["BLEU"], 40, 1),
            page.at_most("training", trained.seconds / 60, LIMIT, 1, " min"),
            page.at_most(f"beam {BEAMS} with a cache, {len(cached):,} sentences", seconds, 60, 1, " s"),
            Goal("same translation without a cache", f"{len(cached):,} sentences", f"{same:,}", same == len(cached)),
        ),
        tables=(
            found.table(SCORES, others={"tiny transformers, published": ("about 40", "")}),
            Table(
                (f"beam {BEAMS}, {len(cached):,} sentences", "seconds", "sentences a second"),
                (
                    ("with a cache", f"{seconds:.1f}", f"{len(cached) / seconds:.1f}"),
                    ("without a cache", f"{anew_seconds:.1f}", f"{len(cached) / anew_seconds:.1f}"),
                ),
            ),
        ),
        about=machine.about(SEED),
        figures={
            "training": trained.figures(),
            "test": found.figures(),
            "decoding": {"cached_seconds": seconds, "anew_seconds": anew_seconds, "same": same, "apart": apart},
            "bleu": {"score": bleu.score, "signature": str(metric.get_signature()), "detail": str(bleu)},
        },
        notes=(
            f"sacreBLEU: {bleu}, {metric.get_signature()}.",
            f"With and without a cache the log-probabilities of the translations differ by at most {apart:.0e}.",
            times(trained, found),
        ),
    )


def timed(task: tasks.Translate, rows: object, *, anew: bool = False) -> tuple[list[Written], float]:
    """The translations of the rows, and the seconds of decoding, from ids to ids."""
    examples = task.encode(rows, targets=False)
    begun = time.perf_counter()
    found = task.write(examples, steps=AnewSteps if anew else CachedSteps)
    return found, time.perf_counter() - begun
