"""Every line of the console that has a number: the number is computed again, from q and k, or from the rows of a file.

Which sentences these are, and what a visit is: `tests/language/numbered.py`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headwise
from headwise import masks, tasks
from headwise.models.checkpoint import default_model
from headwise.records import AttentionRecord, Seen
from headwise.text import Tokenizer
from tests.language import numbered
from tests.viewer.conftest import look, placed, record
from tests.viewer.reader import small_llama

from .conftest import Result, Run
from .test_train import TINY

# Where a file is, how large it is, how long it takes and how far it is; names of others.
WITHOUT = {
    "Options of {0}": "names",
    "{0}: expected {1}. Received: {2}": "names",
    "{0} of {1} heads": "a part of another sentence",
    "{0} row{1} of {2} numbers": "a part of another sentence",
    "{0} See '{1} --help'.": "names",
    "{0} (raised in {1}; --debug shows the traceback)": "names",
    "Wrote the figure {0} ({1}).": "size",
    "Wrote {0} ({1} files, {2}); see {3} for how to call it.": "size",
    "Wrote {0} ({1}). Next:": "size",
    "Wrote {0} ({1}): open it in a browser; it needs no network.": "size",
    "note: {0} ({1}) is read into memory whole, because {2}": "size",
    ", resumed after batch {0}": "progress",
    ", up to batch {0} of {1}": "progress",
    "headwise: the machine is busy, rounds take {0} times the quickest: measuring again": "time",
    "headwise: the machine is busy, rounds take {0} times the quickest: run it again": "time",
    "{0} texts, {1} tokens, {2} tokens/s": "time",
    "{0} tokens/s": "time",
    "{0}; {1} rounds; a matrix product: {2} GFLOP/s": "time",
    "headwise: going on from {0}": "path",
    "headwise: importing {0} (this executes its code)": "path",
    "headwise: importing {0} ({1})": "path",
    "headwise: interrupted; the same command resumes {0}, --restart starts again": "path",
    "headwise: loading {0} (this executes the code of classes of your own)": "path",
    "headwise: wrote {0}": "path",
    "note: {0} has no modules.json: the vectors are means over all tokens": "path",
    "headwise: {0}: read as a text. To read the file: --file {1}": "path",
    "headwise: {0}: {1}, which reads [UNK] instead": "a part is compared",
    ", did you mean {0}?": "name",
    "{0} Did you mean {1}?": "names",
    "always {0}, the commonest in training": "name",
    "DATA is missing: expected, for example, {0}.": "names",
    "for Chinese, a model that reads it learns more: {0}": "names",
    "headwise: this model cannot read such a text. One for Chinese and other languages: {0}": "names",
    "headwise: {0} was given {1} times; it is shown once": "paths",
    "  headwise {0}": "a command",
    "reading text {0}": "progress",
    "reading {0} ({1} of {2})": "progress",
    "{0} × {1}, {2} heads of {3}, {4}, {5}": "the options of bench",
    "headwise {0} (native kernels: {1})": "name",
    "loading {0}": "name",
    "writing {0}": "name",
    "writing and comparing {0}": "name",
    "scoring {0}": "name",
    "examining {0}": "name",
    "reading {0}": "name",
    "headwise: the file has no names of tokens: {0}": "name",
    "headwise: {0}": "name",
    "predicted {0}": "name",
    "the validation part has no row with the label {0}, so its scores say nothing of it: give more rows with "
    "it": "name",
}

TEXT = "The cat sat on the mat because it was tired."


class Console:
    """Someone who runs commands, and compares what they print with what is true."""

    def __init__(self, run: Run, folder: Path, request: pytest.FixtureRequest) -> None:
        self.run_it, self.folder, self.request = run, folder, request
        self.patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        self.read: set[str] = set()
        self.printed = ""

    def run(self, *arguments: str | Path, code: int = 0) -> Result:
        result = self.run_it(*arguments)
        assert result.code == code, result.err
        self.printed = result.out + result.err
        return result

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text, encoding="utf-8")
        return self.folder / name

    def says(self, template: str, *values: Any, near: float = 1e-6) -> None:
        numbered.compare(template, self.printed, {str(place): value for place, value in enumerate(values)}, near)
        self.read.add(template)


def weights_of(of: AttentionRecord, *, causal: bool = False) -> torch.Tensor:
    """The weights [B, H, Q, K] in float64."""
    scores = of.q.double() @ of.k.double().mT * of.scale
    allowed = torch.ones(of.shape[2:], dtype=torch.bool).tril() if causal else torch.tensor(True)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def check_table(printed: str, weights: torch.Tensor, layer: int, head: int, names: list[str]) -> None:
    """Check the line of a head: the means over its queries, [Q, K], to the last digit; and its strongest pair."""
    (line,) = (x for x in printed.splitlines() if re.match(rf"\s*{layer}\s+{head}\s+\S", x))
    shown = line.split()[2:]
    length = weights.shape[-1]
    away = (torch.arange(weights.shape[0])[:, None] - torch.arange(length)).abs()
    truth = {
        "entropy": -torch.xlogy(weights, weights).sum(-1).mean(),
        "distance": (weights * away).sum(-1).mean(),
        "previous": weights.diagonal(-1).mean(),
        "first visible": weights[:, 0].mean(),
    }
    for text, name in zip(shown, names, strict=False):
        assert numbered.agrees(text, float(truth[name]), 1e-5), (name, text, truth[name])
    several = weights[(weights > 0).sum(-1) > 1]
    assert numbered.agrees(shown[-1], float(several.max()), 1e-5), line


def visit_stats(console: Console) -> None:
    """Two layers of two heads, the second of which runs twice."""
    three = [record(length=6, mask=masks.causal()) for _ in range(3)]
    names = [("encoder.0.attn", 0, 0), ("encoder.1.attn", 1, 0), ("encoder.1.attn", 1, 1)]
    seen = Seen([placed(each, name, layer, call=call) for each, (name, layer, call) in zip(three, names, strict=True)])
    (text,) = look(record(length=6)).tokens
    seen.tokens = [replace(text, unknown=tuple(place in (1, 4) for place in range(6)))]
    seen.save(console.folder / "run.hw")
    console.run("stats", "run.hw", "--csv", "rows.csv")
    with (console.folder / "rows.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    console.says("Wrote {0} ({1} rows).", "rows.csv", len(rows))
    console.says("{0} of {1} tokens {2} unknown to this model", 2, 6, "are")
    console.printed = repr(seen.summary())
    console.says("Summary of {0} heads in {1} layer{2}", 4, 2, "s")

    many = look(record(heads=60, length=5, mask=masks.causal()))
    console.printed = str(many.summary())
    there = len(re.findall(r"→", console.printed)) - 1  # one is in the caption
    console.says("… and {0} more rows; to_pandas() has all", 60 - there)
    weights = weights_of(many[0], causal=True)[0]
    for head in range(3):
        check_table(console.printed, weights[head], 0, head, ["entropy", "distance", "previous", "first visible"])


def visit_watch(console: Console) -> None:
    count = len(Tokenizer.from_pretrained(default_model()).encode(TEXT).ids)
    console.run("watch", TEXT, "--layers", "0-2")
    heads = headwise.Bert.from_pretrained(default_model()).config.num_heads
    console.says(
        "Wrote {0} ({1}): {2}, {3}{4} tokens. Next: headwise stats {5}",
        "run.hw",
        ...,
        f"3 layers of {heads} heads",
        "",
        count,
        "run.hw",
    )
    console.run("watch", TEXT, "the cat", "--layers", "0", "--statistics-only")
    short = len(Tokenizer.from_pretrained(default_model()).encode("the cat").ids)
    console.says("Read {0}, {1} tokens.", "2 texts", count + short)
    console.write("long.txt", "the cat\nsat on the mat\nand slept")
    console.run("watch", "--file", "long.txt", "--max-length", "6", "--layers", "0")
    rest = count_of("the cat sat on the mat and slept") - 6
    console.says(
        "headwise: {0} is longer than the {1} tokens that the model reads: the last {2} tokens were cut, from {3} on "
        "(line {4})",
        "long.txt",
        6,
        rest,
        "'the mat and slept'",
        2,
    )


def count_of(text: str) -> int:
    return len(Tokenizer.from_pretrained(default_model()).encode(text).ids)


def visit_weights_that_are_missing(console: Console) -> None:
    small_llama(console.folder, "the cat sat")
    tensors = load_file(console.folder / "model.safetensors")
    gone = sorted(name for name in tensors if name.endswith("k_proj.weight"))
    for name in gone:
        del tensors[name]
    save_file(tensors, console.folder / "model.safetensors", {"format": "pt"})
    console.run("watch", "the cat", "--model", console.folder)
    console.says(
        "headwise: the checkpoint lacks {0}, initialised randomly: {1}",
        f"{len(gone)} weights",
        ", ".join(name.removeprefix("model.") for name in gone),
    )


def visit_view(console: Console) -> None:
    console.run("view", TEXT)
    model = headwise.Bert.from_pretrained(default_model())
    console.says("{0}, up to {1} tokens", f"{model.config.num_layers} layers", count_of(TEXT))
    folder = console.request.getfixturevalue("reviews_run")
    console.run("view", folder, "a good film")
    (row,) = tasks.load(folder).predict(["a good film"])
    console.says("{0}: predicted {1}, probability {2}", "a good film", row["label"], float(row["probability"]))


def visit_embed(console: Console) -> None:
    console.write("in.txt", "a good film\n\na bad film\n")
    console.run("embed", "--file", "in.txt", "--out", "out.npy")
    rows, width = np.load(console.folder / "out.npy").shape
    assert rows == 3
    console.says("Wrote {0} ({1}): {2} rows/s, {3} tokens/s.", "out.npy", f"3 rows of {width} numbers", ..., ...)


def visit_profile(console: Console) -> None:
    texts = ["The cat sat on the mat.", "The dog saw the cat.", "A man reads."]
    console.write("texts.txt", "\n".join(texts))
    tokens, heads = sum(map(count_of, texts)), 12 * 2
    shown = console.run("profile", "--file", "texts.txt", "--lines", "--layers", "0-1").out
    rows = len(re.findall(r"^ +\d+ +\d+ +[a-z]", shown, re.MULTILINE))
    console.says(
        "{0} of {1} heads: those of each kind that have its highest scores, the number that its rule compares.",
        rows,
        heads,
    )
    console.says(
        "Wrote {0} ({1}): {2} over {3} texts, {4} tokens. Next: headwise view {5}",
        "profile.hw",
        ...,
        f"{heads} heads",
        3,
        tokens,
        "profile.hw",
    )
    console.run("view", "profile.hw")
    console.says("{0} heads over {1} tokens", heads, tokens)


def visit_worksheet(console: Console) -> None:
    console.run("worksheet", "--out", "sheet.html")
    page = (console.folder / "sheet.html").read_text(encoding="utf-8")
    console.says("Wrote {0} ({1}, {2} steps).", "sheet.html", ..., len(re.findall(r"<h2", page)))


def visit_predict(console: Console) -> None:
    from headwise.tasks.bulk.parts import Work

    folder = console.request.getfixturevalue("reviews_run")
    names = [f"column{i}" for i in range(6)]
    console.write("in.csv", ",".join(["sentence", *names]) + "\n" + 5 * f"a good film{',1' * 6}\n")
    do = Work.do

    def stopping(work: Work, number: int, *given: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt
        do(work, number, *given)

    console.patch.setattr(Work, "do", stopping)
    command = ("predict", folder, "--file", "in.csv", "--out", "out.csv", "--chunk", "2")
    console.run(*command, code=130)
    console.patch.setattr(Work, "do", do)
    console.run(*command)
    console.says("note: {0} of the rows were finished before", 2 * 2)
    with (console.folder / "out.csv").open(encoding="utf-8") as lines:
        rows = list(csv.reader(lines))
    console.says("Wrote {0} ({1} row{2}).", "out.csv", len(rows) - 1, "s")
    shown = console.run("predict", folder, "--file", "in.csv")
    columns = [name for name in rows[0] if name in shown.out]
    console.says("and {0} more column{1}, which --out writes", len(rows[0]) - len(columns), "s")


def visit_evaluate(console: Console) -> None:
    """Two labels that are known and eleven that are not, two of one of them."""
    folder = console.request.getfixturevalue("reviews_run")
    labels = ["good", "bad", *(f"other{i}" for i in range(11)), "other0"]
    console.write("test.csv", "sentence,label\n" + "".join(f"a {label} film,{label}\n" for label in labels))
    result = console.run("evaluate", folder, "test.csv")
    said = [row["label"] for row in tasks.load(folder).predict([f"a {label} film" for label in labels])]
    right = sum(one == other for one, other in zip(said, labels, strict=True))
    assert next(line.split() for line in result.out.splitlines() if "accuracy" in line)[1] == f"{right / 14:.4f}"
    assert f"test.csv, {len(labels)} rows" in result.out
    console.says("{0} labels: --json writes their confusion table.", len(set(labels)))
    console.says(
        "{0} row{1} that the training data did not have, counted as wrong: {2}",
        12,
        "s have labels",
        "'other0' (2), 'other1' (1), 'other2' (1), 'other3' (1), 'other4' (1), …",
    )


def visit_train(console: Console) -> None:
    """So small a learning rate changes nothing: the loss of an epoch is that of the weights that are kept."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    drawn: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *given: Any, **options: Any) -> None:
        drawn.extend(text.get_text() for text in figure.findobj(Text))
        save(figure, *given, **options)

    console.patch.setattr(Figure, "savefig", saved)
    training = [(f"a {word} film number {row}", word) for row in range(6) for word in ("good", "bad", "good")]
    held = [(f"no {word} film {row}", word) for row, word in enumerate(["good"] * 8 + ["bad"])]
    for name, rows in (("train.csv", training), ("held.csv", held)):
        console.write(name, "sentence,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    still = ("--lr", "1e-12", "--dropout", "0", "--word-dropout", "0", "--epochs", "2")
    given = ("--text", "sentence", "--validation", "held.csv", "--out", "run", *still, *TINY)
    console.run("train", "classify", "train.csv", *given)
    task = tasks.load(console.folder / "run")
    told = task.predict([text for text, _ in held])
    accuracy = sum(row["label"] == label for row, (_, label) in zip(told, held, strict=True)) / len(held)
    always = sum(label == "good" for _, label in held) / len(held)
    rows = task.predict([text for text, _ in training])
    chances = [float(row[f"probability of {label}"]) for row, (_, label) in zip(rows, training, strict=True)]
    loss = -sum(map(math.log, chances)) / len(chances)
    scores = rf"validation accuracy {accuracy:.4g}"
    assert scores in console.printed
    console.says("epoch {0}/{1}{2}: {3}, {4} s, {5} tokens/s", 1, 2, "", ..., ..., ...)
    shown = re.search("epoch 1/2: loss ([^,]+), ", console.printed)
    assert shown
    assert numbered.agrees(shown[1], loss, 1e-4)
    console.says("the best weights are those of epoch {0}: {1} {2}", 1, "validation accuracy", accuracy)
    console.says(
        "the model does not beat a trivial answer, {0}: {1} {2} against {3}. Give more rows, train longer (epochs), or "
        "look for mistakes in the data",
        "always 'good', the commonest in training",
        "accuracy",
        accuracy,
        always,
    )
    console.says(
        "the validation part has only {0} row{1}, so its scores are mostly chance: give more rows, hold out more of "
        "them (validation_share), or give others (validation)",
        len(held),
        "s",
    )
    console.printed = "\n".join(drawn)
    console.says("best: {0}, epoch {1}", accuracy, 1)

    half = ("--text", "sentence", "--validation-share", "0.7", "--out", "half", *still, *TINY)
    console.run("train", "classify", "train.csv", *half)
    (rows_held,) = re.findall(r"validation, (\d+) rows", console.printed)
    learned = len(training) - int(rows_held)
    console.says(
        "only {0} row{1} {2} learned from, and {3} are held out: choose a lower validation_share",
        learned,
        "s",
        "are",
        int(rows_held),
    )


def visit_new_characters(console: Console) -> None:
    """Two characters that the model lacks, in two texts each; a third is in one text alone and is not added."""
    rows = [("龘靐 good", "good"), ("龘靐 bad", "bad"), ("齉 good", "good"), ("a bad film", "bad")]
    console.write("train.csv", "sentence,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    given = ("--text", "sentence", "--epochs", "1", "--validation", "train.csv", "--out", "run")
    console.run("train", "classify", "train.csv", *given)
    console.says(
        "{0} characters that the model does not know were added to it, with vectors of random words to begin with", 2
    )
    assert "for Chinese, a model that reads it learns more: " in console.printed


VISITS = [visit for name, visit in list(globals().items()) if name.startswith("visit_")]


SLOW = [visit_weights_that_are_missing]  # it imports transformers


@pytest.mark.parametrize(
    "visit", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else [], id=each.__name__) for each in VISITS]
)
def test_a_command_says_what_is_true(
    visit: Callable[[Console], None], run: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    console = Console(run, tmp_path, request)
    visit(console)
    assert console.read == numbered.visited(visit)


def test_every_sentence_of_the_console_is_visited() -> None:
    numbered.check_complete(numbered.of_the_console(), VISITS, WITHOUT)
