"""The examples run, quickly and alike each time, and learn what they say."""

from __future__ import annotations

import copy
import csv
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

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


def cells_of(notebook: str) -> list[dict[str, Any]]:
    return json.loads((EXAMPLES / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]


def run_notebook(name: str) -> dict[str, Any]:
    """Its cells, in this process: a kernel of its own would import torch again."""
    found: dict[str, Any] = {}
    exec("\n\n".join("".join(cell["source"]) for cell in cells_of(name) if cell["cell_type"] == "code"), found)
    return found


NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
LEFT_OUT = (
    "train_export_serve"  # half a minute; scripts/docs runs it, and docs/train.md and docs/export.md run its steps
)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_valid_small_and_kept_with_what_they_print(name: str) -> None:
    path = EXAMPLES / f"{name}.ipynb"
    pytest.importorskip("nbformat").validate(json.loads(path.read_text(encoding="utf-8")))
    assert path.stat().st_size < 250_000
    outputs = [output for cell in cells_of(name) for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    prints = [cell for cell in cells_of(name) if cell["cell_type"] == "code" and "print(" in cell["source"][-1]]
    assert all(cell["outputs"] for cell in prints)
    assert f"def test_{name}(" in Path(__file__).read_text(encoding="utf-8") or name == LEFT_OUT
    for cell in cells_of(name):
        for link in re.findall(
            r"\]\(([^)#]+)[^)]*\)", "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        ):
            assert "://" in link or (EXAMPLES / link).exists(), link


def test_attention_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)  # it writes a workbook
    monkeypatch.setattr("torch._tensor_str.PRINT_OPTS", copy.copy(torch._tensor_str.PRINT_OPTS))
    run_notebook("attention_by_hand")
    printed = capsys.readouterr().out
    assert "False" not in printed
    assert printed.count("True") == 4
    assert "[0.12, 0.51, 0.12, 0.25]" in printed
    assert (tmp_path / "attention.xlsx").stat().st_size > 5000


def test_mask_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_notebook("mask_and_plan")
    printed = capsys.readouterr().out
    assert printed.count("less than 1e-5: True") == 3
    assert "kernel 'tiled' cannot run this call: it has no softcap" in printed
    assert "window(7, 0" in printed
    assert found["out"][0, 0, :4].abs().max() == 0


def test_watch_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_notebook("watch_a_model")
    printed = capsys.readouterr().out
    assert printed.index("it → animal") < printed.index("it → [CLS]")
    assert found["sharp"] == (0, 2)
    assert found["pattern"][1:].eq(-1).all()  # a previous-token head, as the text says
    assert found["moved"].argmax() == found["it"]


def test_find_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_notebook("find_a_bug")
    printed = capsys.readouterr().out
    assert "bug: wrong-scale" in printed
    assert "bugs: []" in printed
    assert "MyAttention  computes what torch's does: False" in printed
    assert "Fixed        computes what torch's does: True" in printed
    assert found["loss_of"](found["Fixed"]) < found["mine"] / 3


def test_induction_head(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_notebook("induction_head")
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
