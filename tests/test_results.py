"""What scripts/results writes: a run replaces its own section and its own rows, and leaves the rest as it was."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.results import commands, data, page
from benchmarks.results.page import Goal, Result, Table

ORDER = ("sst2", "etth1", "digits")
ABOUT = {"seed": "3", "date": "2026-11-21", "": "a processor", "torch": "2.13.0"}


def result(name: str, reached: float = 0.9, **given: object) -> Result:
    made = {
        "name": name,
        "title": "what it is",
        "data": "Rows of something.",
        "commands": (f"headwise train classify {name}.csv",),
        "goals": (page.at_least("accuracy", reached, 0.885),),
        "tables": (Table(("", "accuracy"), (("ours", f"{reached:.3f}"), ("always the commonest label", "0.500"))),),
        "about": ABOUT,
        "figures": {"accuracy": reached},
    }
    return Result(**{**made, **given})  # type: ignore[arg-type]


def test_a_section_says_how_what_and_where() -> None:
    assert page.section(result("sst2", notes=("It is a note.",))) == (
        "## sst2: what it is\n\nRows of something.\n\n```sh\nheadwise train classify sst2.csv\n```\n\n"
        "|                            | accuracy |\n| -------------------------- | -------: |\n"
        "| ours                       | 0.900    |\n| always the commonest label | 0.500    |\n\n"
        "- It is a note.\n\nSeed 3, 2026-11-21. a processor, torch 2.13.0.\n"
    )


def test_the_table_at_the_top_says_what_was_wanted_and_reached(tmp_path: Path) -> None:
    page.write(result("sst2", 0.9), tmp_path, ORDER)
    page.write(result("etth1", 0.8), tmp_path, ORDER)
    top = (tmp_path / "results.md").read_text().partition("## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in top.splitlines() if line[:1] == "|"]
    assert rows[2:] == [
        ["[sst2](#sst2-what-it-is)", "accuracy", "≥ 0.885", "0.900", "reached"],
        ["[etth1](#etth1-what-it-is)", "accuracy", "≥ 0.885", "0.800", "**missed**"],
    ]


def test_a_run_replaces_one_section_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    for name in ORDER:
        page.write(result(name), tmp_path, ORDER)
    written = tmp_path / "results.md"
    by_hand = written.read_text().replace("## etth1: what it is\n", "## etth1: what it is\n\nWritten by hand.\n")
    written.write_text(by_hand)
    page.write(result("sst2", 0.95), tmp_path, ORDER)
    before, after = page.sections(by_hand), page.sections(written.read_text())
    assert list(after) == list(ORDER)
    assert "Written by hand." in after["etth1"]
    assert {name for name in ORDER if before[name] != after[name]} == {"sst2"}
    assert "0.950" in after["sst2"]
    assert "0.900" not in after["sst2"]
    page.write(result("sst2", 0.9), tmp_path, ORDER)
    assert written.read_text() == by_hand


def test_sections_stand_in_one_order_whichever_ran_first(tmp_path: Path) -> None:
    for name in reversed(ORDER):
        page.write(result(name), tmp_path, ORDER)
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [f"## {name}: what it is" for name in ORDER]
    kept = json.loads((tmp_path / "results.json").read_text())
    assert list(kept) == list(ORDER)
    assert kept["digits"]["figures"] == {"accuracy": 0.9}


def test_goals_are_met_at_the_figure_itself() -> None:
    assert page.at_least("a", 0.885, 0.885) == Goal("a", "≥ 0.885", "0.885", True)
    assert not page.at_least("a", 0.8849, 0.885).met
    assert page.at_most("a", 600, 600, 0, " s") == Goal("a", "≤ 600 s", "600 s", True)
    assert not page.at_most("a", 600.1, 600, 0).met


def test_a_run_that_is_there_is_not_trained_again_unless_the_command_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(commands, "headwise", lambda *words, folder: ran.append(words) or commands.Ran("", 7.0, 7.0))
    kept = commands.Ran("headwise train classify a.csv --lr 1 --out run", 3600.0, 3500.0)
    (tmp_path / "run.trained.json").write_text(json.dumps(asdict(kept)))
    assert commands.train("classify", "a.csv", "--lr", "1", folder=tmp_path, quick=False) == kept
    assert ran == []
    assert commands.train("classify", "a.csv", "--lr", "2", folder=tmp_path, quick=False).seconds == 7
    assert ran == [("train", "classify", "a.csv", "--lr", "2", "--out", "run")]


def test_a_long_command_is_broken_before_an_option() -> None:
    words = ["headwise", "train", "classify", "a file.csv", *(f"--option-{i}={i}" for i in range(9))]
    written = commands.wrapped(words)
    assert "'a file.csv'" in written
    assert all(len(line) <= 120 for line in written.splitlines())
    assert shlex.split(written.replace("\\\n", "")) == words


def test_pairs_are_put_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        for side, lines in (("en", 'A "big" dog.\nTwo\tcats.\n'), ("de", "Ein großer Hund.\nZwei\u2028Katzen.\n")):
            (tmp_path / "multi30k" / f"{stem}.{side}.gz").write_bytes(gzip.compress(lines.encode()))
    data.multi30k(tmp_path, tmp_path)
    with (tmp_path / "test.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    assert rows == [["en", "de"], ['A "big" dog.', "Ein großer Hund."], ["Two\tcats.", "Zwei\u2028Katzen."]]


def test_a_series_is_cut_by_months_and_what_a_first_window_reads_comes_before(tmp_path: Path) -> None:
    (tmp_path / "etth1").mkdir()
    (tmp_path / "etth1" / "ETTh1.csv").write_text("\n".join(["date,OT", *(f"h,{i}" for i in range(17420)), ""]))
    data.etth1(tmp_path, tmp_path, past=336)
    rows = {name: (tmp_path / f"{name}.csv").read_text().splitlines() for name in ("train", "val", "test")}
    assert {name: (lines[1], lines[-1]) for name, lines in rows.items()} == {
        "train": ("h,0", "h,8639"),
        "val": ("h,8304", "h,11519"),
        "test": ("h,11184", "h,14399"),
    }
    assert len(rows["test"]) - 1 - 336 - 96 + 1 == 2785  # as many windows as others count


def test_paragraphs_are_split_alike_in_every_language(tmp_path: Path) -> None:
    (tmp_path / "xquad").mkdir()
    found = {}
    for language in ("en", "zh"):
        articles = [{"paragraphs": [{"context": f"{language} {i} {j}"} for j in range(5)]} for i in range(4)]
        (tmp_path / "xquad" / f"xquad.{language}.json").write_text(json.dumps({"data": articles}))
        (tmp_path / language).mkdir()
        data.xquad(tmp_path, tmp_path / language, language)
        for name in ("train", "test"):
            kept = json.loads((tmp_path / language / f"{name}.json").read_text())["data"]
            found[language, name] = {p["context"][3:] for article in kept for p in article["paragraphs"]}
    assert (len(found["en", "train"]), len(found["en", "test"])) == (16, 4)
    assert found["en", "train"] | found["en", "test"] == {f"{i} {j}" for i in range(4) for j in range(5)}
    assert found["en", "train"] == found["zh", "train"]


def test_digits_are_pictures_with_what_they_show(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    image = pytest.importorskip("PIL.Image")
    data.digits(tmp_path)
    with (tmp_path / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 359
    assert len(list((tmp_path / "images").glob("*.png"))) == 1797
    with image.open(tmp_path / rows[0]["image"]) as picture:
        assert (picture.size, picture.mode) == ((8, 8), "L")
    assert len({(row["english"], row["chinese"]) for row in rows}) == 10
