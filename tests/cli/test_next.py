"""Every command that headwise prints or advises is right: what `headwise train` prints under "Next:" runs as it is."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from PIL import Image

from headwise.cli import command
from headwise.tasks.kinds import BUILT_IN
from tests.language.sentences import words_of_the_code

from .conftest import Run, refused

TINY = "--dim 16 --heads 2 --epochs 1 --monitor-every 0 --accelerator cpu"
TEXTS = sorted(words_of_the_code())
CONTEXTS = [f"It is in Rome now {place}." for place in range(12)]


def paragraph(context: str) -> dict[str, Any]:
    answers = [{"text": "Rome", "answer_start": context.index("Rome")}]
    return {"context": context, "qas": [{"id": context, "question": "Where is it?", "answers": answers}]}


COLOURS = ("red", "blue", "green", "black", "white", "pink")
DAYS = np.arange("2024-01-20", "2024-03-20", dtype="datetime64[D]").tolist()
FILES = {  # name of the training data -> their content
    "reviews.csv": "text,other,label\n" + "a good film,at last,good\na bad film,for ever,bad\n" * 12,
    "questions.csv": "question,context,answer\n" + "".join(f"Where is it?,{each},Rome\n" for each in CONTEXTS),
    "squad.json": json.dumps({"data": [{"paragraphs": list(map(paragraph, CONTEXTS))}]}),
    "pairs.tsv": "en\tde\n" + "a dog\tein Hund\na cat\teine Katze\n" * 12,
    "texts.jsonl": '{"text": "a dog and a cat", "summary": "two", "message": "hello", "reply": "hi"}\n' * 24,
    "corpus.txt": "the cat runs and the dog sleeps\n" * 40,
    "load of a year.csv": "day,load\n" + "".join(f"{day:%d/%m/%Y},{row * 7 % 5}\n" for row, day in enumerate(DAYS)),
    "pairs.csv": "image,text\n" + "".join(f"{colour}.png,a {colour} square\n" for colour in COLOURS * 3),
}
TEXT = "--layers 1 --ffn-dim 16 --vocab-size 300 --max-target-length 5 --beams 1"
IMAGES = "--image-layers 1 --image-size 8 --shared-dim 8 --vocab-size 100 --validation-share 0.5"
TRAININGS = {
    "classify": f"reviews.csv --model scratch --layers 1 --vocab-size 100 {TINY}",
    "classify pairs": f"reviews.csv --text-pair other --model scratch --layers 1 --vocab-size 100 {TINY}",
    "answer": f"questions.csv --model scratch --layers 1 --vocab-size 100 {TINY}",
    "answer squad": f"squad.json --model scratch --layers 1 --vocab-size 100 {TINY}",
    "translate": f"pairs.tsv --source en --target de {TEXT} {TINY}",
    "summarize": f"texts.jsonl {TEXT} {TINY}",
    "reply": f"texts.jsonl {TEXT} {TINY}",
    "forecast": f"'load of a year.csv' --context 6 --horizon 2 --patch-length 2 --layers 1 {TINY}",
    "language masked": f"corpus.txt --layers 1 --vocab-size 300 {TINY}",
    "language causal": f"corpus.txt --objective causal --layers 1 --vocab-size 300 --write 2 {TINY}",
    "match": f"pairs.csv {IMAGES} {TINY}",
    "match pairs": f"pairs.csv --gallery 0 {IMAGES} {TINY}",
}


def test_each_task_is_tried() -> None:
    assert {name.split()[0] for name in TRAININGS} == set(BUILT_IN)


@pytest.mark.parametrize("name", TRAININGS)
def test_what_a_training_prints_runs(run: Run, tmp_path: Path, name: str) -> None:
    data, *options = shlex.split(TRAININGS[name])
    (tmp_path / data).write_text(FILES[data], encoding="utf-8")
    shutil.copy(tmp_path / data, tmp_path / f"test{Path(data).suffix}")  # which the user has to have
    for colour in COLOURS:
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{colour}.png")
    result = run("train", name.split()[0], data, "--out", "a run", *options)
    assert result.code == 0, result.err
    printed = [line.removeprefix("  headwise ") for line in result.out.splitlines() if line.startswith("  headwise ")]
    assert [line.split()[0] for line in printed] == ["predict", "evaluate", "view"][: 2 + (name != "match pairs")]
    for line in printed:
        assert (after := run(*shlex.split(line))).code == 0, f"headwise {line}: {after.err}"


def test_each_command_that_is_advised_has_the_options_of_the_advice() -> None:
    advised = [found for text in TEXTS for found in re.finditer(r"headwise (\w+)((?:(?!\. )[^;:,()`\n])*)", text)]
    known = {name: _flags(each) for name, each in command.commands.items()}
    wrong = []
    for found in advised:
        flags = set(re.findall(r" (--[a-z-]+)", found[2].split(" -- ")[0].split(" && ")[0]))
        if found[1] in known and not flags <= known[found[1]] | {"--name"}:  # "--name" stands for any option
            wrong.append(found[0])
    assert len(advised) > 20
    assert not wrong


def _flags(of: click.Command) -> set[str]:
    """The options of a command and of its subcommands."""
    context = click.Context(of, **of.context_settings)
    found = {flag for each in of.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    for name in of.list_commands(context) if isinstance(of, click.Group) else ():
        found |= _flags(of.get_command(context, name) or of)
    return found


def test_each_command_that_is_printed_next_can_be_parsed() -> None:
    printed = {found[1] for text in TEXTS if (found := re.search(r"Next: headwise (.*\S)$", text))}
    assert len(printed) > 1
    for line in printed:
        name, *words = shlex.split(re.sub(r"\{\d+\}", "run.hw", line))
        command.commands[name].make_context(name, words)


@pytest.mark.parametrize("name", ["profile", "heads.bin"])
def test_a_profile_has_a_name_that_view_knows(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "corpus.txt").write_text("a text", encoding="utf-8")
    refused(
        run("profile", "--file", "corpus.txt", "--out", name),
        f"--out: expected a name that ends in .hw. Received: {name}",
    )
