"""The Chinese texts use the words of the glossary, and none that it rules out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headwise.language import read_catalogue

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "zh" / "glossary.md"


def ruled_out() -> list[str]:
    rows = re.findall(r"^\|[^|]*\|[^|]*\|[^|]*\| (.*) \|$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return [word for row in rows[1:] for word in row.split("、")]  # the first row is the heading


def texts() -> dict[str, str]:
    documents = [ROOT / "README.zh.md", *sorted((ROOT / "docs" / "zh").rglob("*.md"))]
    found = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in documents if path != GLOSSARY}
    page = json.loads((ROOT / "headwise" / "viewer" / "static" / "zh.json").read_text("utf-8"))
    return found | {"the catalogue": "\n".join(read_catalogue("zh").values()), "the page": "\n".join(page.values())}


def test_the_glossary_rules_words_out() -> None:
    assert {"令牌", "头部", "遮罩"} <= set(ruled_out())


@pytest.mark.parametrize("name", texts())
def test_no_text_has_a_word_that_the_glossary_rules_out(name: str) -> None:
    text = texts()[name]
    assert [word for word in ruled_out() if word in text] == []


@pytest.mark.parametrize("name", texts())
def test_chinese_is_punctuated_as_chinese(name: str) -> None:
    """No comma, semicolon or question mark of English between two Chinese letters."""
    text = re.sub(r"```.*?```", "", texts()[name], flags=re.DOTALL)
    assert re.findall(r"[\u4e00-\u9fff][,;?!][\u4e00-\u9fff]", text) == []
