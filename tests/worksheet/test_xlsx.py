"""The workbook as a file: formulas and constants, names, results for those who cannot calculate, and any text."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
import torch
from openpyxl.worksheet.formula import ArrayFormula

import headwise.worksheet
from headwise import masks, nn
from headwise.errors import FileError
from headwise.worksheet import make
from headwise.worksheet.description import CONSTANTS

from .cases import CASES, x
from .workbook import Workbook

FEW = ["everything", "t5", "cross", "mla", "bert"]
HOSTILE = ["=1+1", "+A1", "@SUM(A1)", "a\x00b", "</c>&<", "🙂", "\ud800", "I" * 200, "−∞", "'x", "", " "]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.xlsx"


@pytest.mark.parametrize("name", FEW)
def test_what_is_in_the_cells(name: str, path: Path) -> None:
    """Only what may be changed is a constant; every matrix is a named range; results are there without calculating."""
    sheet = CASES[name]().make()
    sheet.write(path)
    formulas, results = Workbook(path, results=False), Workbook(path, results=True)
    assert sorted(formulas.names) == sorted(sheet.matrices)
    assert results.errors == []
    for name, matrix in sheet.matrices.items():
        rows = formulas.cells(name)
        assert (len(rows), len(rows[0])) == matrix.shape
        cells = [cell for row in rows for cell in row]
        if matrix.formula is None:
            assert matrix.kind in CONSTANTS
            assert {cell.data_type for cell in cells} == {"n"}, name
        elif matrix.formula.whole:
            assert isinstance(cells[0].value, ArrayFormula)
            assert cells[0].value.ref == f"{cells[0].coordinate}:{cells[-1].coordinate}"
            assert "MMULT(" in cells[0].value.text
        else:
            assert all(str(cell.value).startswith("=") for cell in cells), name
        np.testing.assert_allclose(results[name], matrix.values, rtol=1e-15, err_msg=name)


def test_whoever_can_computes_it_anew(path: Path) -> None:
    make(nn.MultiHeadAttention(4, 2), x(3, 4)).write(path)
    with zipfile.ZipFile(path) as archive:
        assert 'fullCalcOnLoad="1"' in archive.read("xl/workbook.xml").decode()
        assert archive.testzip() is None


def test_a_sheet_for_each_step_with_its_labels_behind_an_overview(path: Path) -> None:
    sheet = make(nn.MultiHeadAttention(4, 2), x(3, 4), tokens=["a", "b", "c"])
    sheet.write(path)
    book = openpyxl.load_workbook(path)
    first, *pages = book.sheetnames
    assert first == "Overview"
    assert [name.partition(" ")[2] for name in pages] == [step.heading.replace(": ", " ") for step in sheet]
    targets = [cell.hyperlink.location for (cell,) in book[first]["A6:A17"]]
    assert targets == [f"'{name}'!A1" for name in pages]
    for name, step in zip(pages, sheet, strict=True):
        page = book[name]
        assert [page["A1"].value, page["A2"].value, page["A3"].value] == [step.heading, step.sentence, step.symbols]
        assert page.freeze_panes == "B5"
        assert page.page_setup.orientation == "landscape"

    page = book["5 Scores"]
    assert page["A6"].value == "Scores_1  [Q × K] = [3 × 3]"
    assert page["A7"].value == "= MMULT(Q_1, TRANSPOSE(K_1))"
    assert [cell.value for cell in page[8][:4]] == ["Q ╲ K", "a", "b", "c"]
    assert [page[f"A{row}"].value for row in (9, 10, 11)] == ["a", "b", "c"]
    assert page["B9"].number_format == "0.000"


def test_weights_have_a_scale_of_colours_and_a_mask_its_choice(path: Path) -> None:
    make(nn.MultiHeadAttention(4, 1), x(3, 4), mask=masks.causal()).write(path)
    book = Workbook(path, results=False)
    for name, kinds in {"A_1": ["colorScale"], "Mask": ["cellIs"], "Masked_1": ["expression"]}.items():
        cells = book.cells(name)
        area = f"{cells[0][0].coordinate}:{cells[-1][-1].coordinate}"
        found = cells[0][0].parent.conditional_formatting
        assert [rule.type for each in found if str(each.sqref) == area for rule in each.rules] == kinds
    (choice,) = book.cells("Mask")[0][0].parent.data_validations.dataValidation
    assert (choice.type, choice.formula1, choice.formula2) == ("whole", "0", "1")


def test_tokens_may_be_any_text(path: Path) -> None:
    sheet = make(nn.MultiHeadAttention(4, 2), x(len(HOSTILE), 4), tokens=HOSTILE, title="=cmd|' /C calc'!A0\x01")
    sheet.write(path)
    book = openpyxl.load_workbook(path)
    assert book["Overview"]["A1"].data_type == "s"
    page = book["1 Inputs"]
    labels = [page[f"A{row}"] for row in range(9, 9 + len(HOSTILE))]
    assert {cell.data_type for cell in labels if cell.value is not None} == {"s"}
    shown = ["=1+1", "+A1", "@SUM(A1)", "a\ufffdb", "</c>&<", "🙂", "\ufffd", "I" * 23 + "…", "−∞", "'x", None, " "]
    assert [cell.value for cell in labels] == shown
    assert not [
        cell
        for cell in Workbook(path, results=False).every_cell()
        if cell.data_type == "f" and "cmd" in str(cell.value)
    ]


@pytest.mark.slow
def test_xlsxwriter_is_imported_only_for_a_workbook(tmp_path: Path) -> None:
    code = f"""
import sys, torch
import headwise.worksheet
from headwise.worksheet import demo
sheet = demo.demo("multi-head", ["a", "b"])
sheet.write({str(tmp_path / "steps.md")!r})
sheet.write({str(tmp_path / "steps.html")!r})
assert "xlsxwriter" not in sys.modules
sheet.write({str(tmp_path / "steps.xlsx")!r})
assert "xlsxwriter" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_is_whole_or_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"before")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(FileError, match=r"cannot write .*steps\.xlsx: No space left on device"):
        headwise.worksheet.write(nn.MultiHeadAttention(4, 2), x(3, 4), path)
    assert [each.name for each in path.parent.iterdir()] == ["steps.xlsx"]
    assert path.read_bytes() == b"before"


def test_the_same_file_each_time_but_for_its_date(tmp_path: Path) -> None:
    module, inputs = nn.MultiHeadAttention(4, 2), torch.ones(1, 3, 4)
    for name in ("a.xlsx", "b.xlsx"):
        assert headwise.worksheet.write(module, inputs, tmp_path / name).title == "Multi-head attention, step by step"
    with zipfile.ZipFile(tmp_path / "a.xlsx") as a, zipfile.ZipFile(tmp_path / "b.xlsx") as b:
        assert a.namelist() == b.namelist()
        assert [name for name in a.namelist() if a.read(name) != b.read(name)] in ([], ["docProps/core.xml"])
