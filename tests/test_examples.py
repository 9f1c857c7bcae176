"""The examples run, quickly and alike each time, and learn what they say."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import headwise

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# Those of Keras are in tests/keras/test_examples.py, which runs on each backend.
@pytest.mark.parametrize(
    "example",
    [path for path in sorted(EXAMPLES.glob("*.py")) if not path.stem.startswith("keras_")],
    ids=lambda path: path.stem,
)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
    assert f"def test_{example.stem}(" in Path(__file__).read_text(encoding="utf-8")


def test_attention_pooling(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("attention_pooling")
    assert found["accuracy"] > 0.95
    assert found["looks"] > 0.9
    assert found["seen"][0].row_names == ("verdict",)
    printed = capsys.readouterr().out
    assert "verdict → " in printed
    assert "verdict → ·        0.00" in printed  # padding


def test_sets() -> None:
    found = run("sets")
    assert found["accuracy"] > 0.95
    assert found["moved"] < 1e-4


def test_image_patches() -> None:
    found = run("image_patches")
    assert found["accuracy"] > 0.95
    looked_at = found["seen"][0].weights()[:, 0].argmax(-1)  # [1000, 2 latents]
    assert (looked_at == found["places"]).float().mean() > 0.95
    assert found["seen"].col_labels(found["seen"][0])[5] == "(1, 1)"


def test_cross_modal(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("cross_modal")
    assert found["accuracy"] > 0.95
    assert found["looks"] > 0.95
    printed = capsys.readouterr().out
    words, places, colours = (found[name] for name in ("WORDS", "PLACES", "COLOURS"))
    for word, place, colour in zip(words, found["places"][0], found["colours"][0], strict=True):
        assert f"the {colours[colour]} {word} is {places[place]}" in printed


def test_reviews_are_balanced_different_and_short() -> None:
    rows = [row for name in ("examples/reviews.csv", "tests/data/plain_reviews.csv") for row in read(name)]
    labels = [row["label"] for row in rows]
    assert labels.count("good") == labels.count("bad") >= 350
    words = [re.findall(r"[a-z'-]+", row["sentence"].lower()) for row in rows]
    assert all(3 <= len(each) <= 20 for each in words[:-50])
    assert len({word for each in words for word in each}) > 1400
    seen: dict[frozenset[str], str] = {}
    for each, row in zip(words, rows, strict=True):
        assert seen.setdefault(frozenset(each), row["sentence"]) is row["sentence"]  # nor the same words turned round
    assert words[0][:5] == ["a", "warm", "and", "funny", "film"]  # as the README asks


def read(name: str) -> list[dict[str, str]]:
    with open(EXAMPLES.parent / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_my_attention(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "my_attention.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "bug  wrong-scale" in printed
    assert "divided by 8.000" in printed


def test_induction_head(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "induction_head.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[2:] if cell["cell_type"] == "code" and "print(" in cell["source"][-1])
    found: dict[str, Any] = {}
    exec("\n\n".join(code), found)
    shown = capsys.readouterr().out

    def p_ant(*edits: Any) -> float:
        with headwise.edit(found["model"], list(edits), tokens=found["words"]):
            return float(found["probability"](found["model"](found["prompt"])))

    assert float(found["probability"](found["model"](found["prompt"]))) > 0.99
    one, both = (headwise.edits.ablate("layers.1", heads=heads) for heads in (0, [0, 1]))
    assert p_ant(one) > 0.9 > 0.5 > p_ant(both)
    assert p_ant(headwise.edits.block("layers.1", queries=-1, keys="ant")) < 0.1
    assert p_ant(headwise.edits.block("layers.1", queries=-1, keys="fox")) > 0.99
    assert [line.split(", ", 1)[1] for line in shown.splitlines() if "query 7 to key 3" in line][:2] == [
        "head 1, query 7 to key 3",
        "head 0, query 7 to key 3",
    ]
