"""`headwise worksheet` as a person uses it: what it writes and prints, and what it refuses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise import masks
from headwise.records import Seen
from headwise.worksheet import Worksheet, demo, make
from tests.viewer.conftest import look, record
from tests.worksheet.workbook import Workbook

from .conftest import Run, refused


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Worksheet]:
    """The worksheets that the command makes."""
    found: list[Worksheet] = []

    def remember(*arguments: Any, **options: Any) -> Worksheet:
        found.append(make(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(demo, "make", remember)
    monkeypatch.setattr("headwise.worksheet.make", remember)
    return found


@pytest.mark.parametrize("kind", ["multi-head", "latent", "mla", "bert"])
def test_writes_a_workbook(run: Run, tmp_path: Path, made: list[Worksheet], kind: str) -> None:
    result = run("worksheet", "--kind", kind, "--tokens", "I drink and know things", "--out", "attention.xlsx")
    assert (result.code, result.err) == (0, "")
    (sheet,) = made
    out = tmp_path / "attention.xlsx"
    assert out.read_bytes().startswith(b"PK")
    assert result.out == f"Wrote attention.xlsx ({out.stat().st_size / 1e3:.0f} kB, {len(sheet)} steps).\n"
    assert [path.name for path in tmp_path.iterdir()] == ["attention.xlsx"]


@pytest.mark.parametrize(("name", "start"), [("steps.md", "# Multi-head"), ("steps.HTML", "<!DOCTYPE html>")])
def test_writes_markdown_and_a_page(run: Run, tmp_path: Path, name: str, start: str) -> None:
    assert run("worksheet", "--out", name).code == 0
    assert (tmp_path / name).read_text("utf-8").startswith(start)


def test_prints_the_steps_where_nothing_is_written(run: Run, tmp_path: Path) -> None:
    result = run("worksheet", "--tokens", "to be or not")
    assert (result.code, result.err) == (0, "")
    assert re.findall(r"^(\d+)  (.+)$", result.out, re.MULTILINE)[-1] == ("12", "Output")
    assert re.search(r"Q ╲ K +to +be +or +not", result.out)
    both = run("worksheet", "--tokens", "to be or not", "--out", "steps.md", "--show")
    assert both.out.startswith(result.out)
    assert both.out.removeprefix(result.out).startswith("Wrote steps.md")


def test_numbers_are_short_and_the_same_each_time(run: Run, made: list[Worksheet]) -> None:
    for arguments in ([], [], ["--seed", "1"]):
        assert run("worksheet", "--kind", "bert", "--tokens", "a b a", *arguments).code == 0
    first, second, other = (sheet["Word"].values for sheet in made)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    for matrix in made[0].matrices.values():
        if matrix.kind in ("input", "parameter"):
            np.testing.assert_array_equal(matrix.values, matrix.values.round(2))
    np.testing.assert_array_equal(first[1], first[3])  # the same word is the same row
    assert made[0]["Word"].rows.labels == ("[CLS]", "a", "b", "a", "[SEP]")


@pytest.mark.parametrize(
    ("arguments", "name", "size"),
    [
        (["--heads", "4", "--kv-heads", "2"], "K_2", "[S × D] = [5 × 2]"),
        (["--positions", "rope"], "Angle", "[S × P] = [5 × 2]"),
        (["--memory", "give me that"], "A_2", "[Q × K] = [5 × 3]"),
        (["--kind", "latent", "--latents", "3"], "Latents", "[N × M] = [3 × 4]"),
        (["--kind", "mla", "--heads", "3"], "Cache", "[S × R+T] = [5 × 7]"),
        (["--tokens", "我喝酒我知道"], "A_1", "[Q × K] = [6 × 6]"),
    ],
)
def test_every_option_reaches_the_steps(
    run: Run, made: list[Worksheet], arguments: list[str], name: str, size: str
) -> None:
    assert run("worksheet", *arguments).code == 0
    assert made[0][name].size == size


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ([], "111 111 111"),
        (["--mask", "causal"], "100 110 111"),
        (["--kind", "mla"], "100 110 111"),
        (["--mask", "window:0,1"], "110 011 001"),
        (["--mask", "prefix:2"], "110 110 111"),
        (["--mask", "lengths:1"], "100 100 100"),
        (["--kind", "latent", "--mask", "lengths:2"], "110 110"),
        (["--kind", "bert", "--mask", "lengths:4"], "11110 11110 11110 11110 11110"),
    ],
)
def test_masks(run: Run, made: list[Worksheet], arguments: list[str], rows: str) -> None:
    assert run("worksheet", "--tokens", "a b c", *arguments).code == 0
    assert " ".join("".join(f"{cell:.0f}" for cell in row) for row in made[0]["Mask"].values) == rows


def test_a_small_checkpoint_in_place_of_made_up_numbers(run: Run, made: list[Worksheet], tiny_bert: Path) -> None:
    arguments = ["--kind", "bert", "--model", str(tiny_bert), "--tokens", "the cat sat", "--mask", "lengths:4"]
    assert run("worksheet", *arguments, "--out", "steps.md").code == 0
    (sheet,) = made
    assert sheet["Word"].rows.labels == ("[CLS]", "the", "cat", "sat", "[SEP]")
    assert sheet.steps[-1].part == "Layer 3"
    assert not sheet["Layer1_Mask"].values[:, 4].any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "steps.pdf"], "--out steps.pdf: expected a file name that ends in .xlsx, .md, .html"),
        (["--out", "nowhere/steps.md"], "--out nowhere/steps.md: the folder nowhere does not exist"),
        (["--tokens", " "], "tokens: expected at least one word. Received: tokens=[]"),
        (["--tokens", "a " * 17], "17 tokens. A worksheet shows up to 16 tokens"),
        (["--tokens", "a " * 15, "--kind", "bert"], "at most 16 tokens. Received: 17 tokens"),
        (["--heads", "2", "--kv-heads", "3"], "heads: expected a multiple of kv_heads=3. Received: heads=2"),
        (["--kind", "mla", "--kv-heads", "1"], "--kv-heads: only --kind multi-head has this option"),
        (["--latents", "3"], "--latents: only --kind latent has this option. Received: --kind=multi-head"),
        (["--kind", "bert", "--model", "x", "--seed", "1"], "--seed: only made-up numbers have this option"),
        (["--mask", "causual"], "--mask: with --kind multi-head expected one of causal, window:LEFT,RIGHT"),
        (["--mask", "window:3"], "--mask: expected window:LEFT,RIGHT. Received: --mask='window:3'"),
        (["--mask", "lengths:-1"], "Received: --mask='lengths:-1'"),
        (["--kind", "latent", "--mask", "causal"], "--mask: with --kind latent expected one of lengths:N, none."),
        (["--mask", "lengths:9"], "lengths: n must not exceed the 5 keys. Received: n=[9]"),
    ],
)
def test_what_it_refuses(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    refused(run("worksheet", *arguments), said)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_too_wide_is_not_even_read(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    folder.mkdir()
    shutil.copy(tiny_bert / "config.json", folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 16', '"hidden_size": 768'))
    result = run("worksheet", "--kind", "bert", "--model", str(folder))
    assert result.code == 2
    assert "too wide to follow: expected a width of at most 16. Received: 768" in result.err


def test_without_xlsxwriter(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xlsxwriter", None)
    result = run("worksheet", "--out", "attention.xlsx")
    assert result.code == 2
    assert "a workbook needs XlsxWriter, which is not installed" in result.err
    assert list(tmp_path.iterdir()) == []


# ---- one weight of a file of records


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    seen = look(*(record(length=4, mask=masks.causal()) for _ in range(2)), labels=["it", "was", "the", "animal"])
    seen.save(tmp_path / "run.hw")
    return seen


def test_a_weight_of_a_record(run: Run, tmp_path: Path, seen: Seen) -> None:
    asked = ["run.hw", "--layer", "1", "--head", "1", "--row", "animal", "--col", "it"]
    result = run("worksheet", *asked, "--out", "weight.xlsx")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Wrote weight.xlsx (")
    weight = seen[1].weights(heads=1, rows=3, cols=0).item()
    assert Workbook(tmp_path / "weight.xlsx")["Weight"].item() == pytest.approx(weight, abs=1e-6)
    printed = run("worksheet", *asked[:-4], "--row", "3", "--col", "0").out
    assert f"Weight = INDEX(Weights, 1, 1) = {weight:.6f}" in printed


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run.hw", "--row", "it"], "--col: expected a token or a position of RECORDS. Received: no --col"),
        (["--row", "it"], "--row: only a weight of RECORDS has this option. Received: no RECORDS"),
        (["run.hw", "--kind", "mla"], "--kind: only made-up numbers have this option. Received: RECORDS=run.hw"),
        (["run.hw", "--seed", "1"], "--seed: only made-up numbers have this option"),
        (["run.hw", "--row", "it", "--col", "it"], "layer: choose one of the 2 layers"),
        (["run.hw", "--layer", "0", "--row", "dog", "--col", "0"], "row: 'dog' is not among the tokens"),
        (["no.hw", "--row", "0", "--col", "0"], "no.hw"),
    ],
)
def test_what_it_refuses_of_a_record(run: Run, arguments: list[str], said: str) -> None:
    refused(run("worksheet", *arguments), said)
