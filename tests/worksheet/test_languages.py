"""A worksheet in Chinese: its sentences and sheets are translated, its formulas still find their cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openpyxl
import pytest

from headwise import language, masks
from headwise.worksheet.demo import demo


@pytest.fixture(autouse=True)
def chinese() -> Iterator[None]:
    language.speak("zh")
    yield
    language.speak(None)


def test_sheets_are_named_in_chinese_and_formulas_refer_to_them(tmp_path: Path) -> None:
    demo("multi-head", ["I", "drink"], mask=masks.causal()).write(tmp_path / "attention.xlsx")
    book = openpyxl.load_workbook(tmp_path / "attention.xlsx")
    assert book.sheetnames[:3] == ["总览", "1 输入", "2 查询"]
    referred = {name for sheet in book for row in sheet for cell in row for name in _sheets_of(cell.value)}
    assert referred
    assert referred <= set(book.sheetnames)


def _sheets_of(value: object) -> list[str]:
    text = getattr(value, "text", value)  # an array formula is an object
    return str(text).split("'")[1::2] if str(text).startswith("=") else []


@pytest.mark.parametrize("kind", ["multi-head", "latent", "mla", "bert"])
def test_every_step_has_a_chinese_title_and_sentence(kind: str) -> None:
    sheet = demo(kind, ["I", "drink"])
    for step in sheet:
        assert not step.title.isascii(), step.title
        assert not step.sentence.isascii(), step.sentence
    assert not sheet.title.isascii()


def test_a_page_says_its_language(tmp_path: Path) -> None:
    demo("multi-head", ["I", "drink"]).write(tmp_path / "steps.html")
    text = (tmp_path / "steps.html").read_text("utf-8")
    assert '<html lang="zh">' in text
    assert '<b class="given">蓝色</b>的数是输入、参数和选项' in text
