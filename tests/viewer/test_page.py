"""The file: small, whole or not there at all, closed to whatever a text may try, and never a wrong picture."""

from __future__ import annotations

import dataclasses
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, FileError, RecordError
from headwise.records import AttentionRecord
from headwise.viewer import TextAttention, write_page

from .conftest import HOSTILE, Page, look, record


def test_six_layers_of_twelve_heads_over_512_tokens_take_seven_megabytes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(page, [look(*(record(12, 12, 512, 32, mask=masks.causal()) for _ in range(6)))], title="")
    assert page.stat().st_size < 7.1e6


def test_the_page_names_nothing_outside_itself(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", [look(record())], title="A title")
    source = re.sub(r"//[^\n]*", "", Page.read(tmp_path / "page.html").source)  # comments may cite
    assert re.findall(r'(?:src|href|action)="?([^"> ]*)', source) == ["data:,"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|document\.write", source)


def test_a_text_cannot_leave_its_place(tmp_path: Path) -> None:
    labels = [*HOSTILE[1:], HOSTILE[0] + "\ud800"]  # half a surrogate pair: no UTF-8 has it
    write_page(tmp_path / "page.html", [look(record(), labels=labels)], title="".join(labels))
    page = Page.read(tmp_path / "page.html")
    assert page.facts["texts"][0]["labels"] == labels
    assert "\u2028" not in re.sub(r"(?s)<(title|h1)>.*?</\1>", "", page.source)
    seen: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    Tags().feed(page.source)
    plain = tmp_path / "plain.html"
    write_page(plain, [look(record())], title="")
    expected, seen = seen, []
    Tags().feed(plain.read_text(encoding="utf-8"))
    assert seen == expected
    assert "img" not in seen


def test_words_and_gaps_give_the_text_back(tmp_path: Path) -> None:
    text = look(record(length=5))
    spaced = dataclasses.replace(
        text.tokens,
        text="  a cat\n 🐈",
        labels=("[CLS]", "a", "cat", "🐈(1/2)", "🐈(2/2)"),
        offsets=((0, 0), (2, 3), (4, 7), (9, 10), (9, 10)),
        special=(True, False, False, False, False),
    )
    write_page(tmp_path / "page.html", [dataclasses.replace(text, tokens=spaced)], title="")
    facts = Page.read(tmp_path / "page.html").facts["texts"][0]
    assert facts["pieces"] == ["[CLS]", "a", "cat", "🐈", "🐈(2/2)"]
    assert facts["gaps"] == ["", "  ", " ", "\n ", ""]


def batch_of_two() -> AttentionRecord:
    q = torch.randn(2, 2, 9, 4)
    return headwise.attention(q, q, q, record=True)[1]


def fewer_keys() -> AttentionRecord:
    q = torch.randn(1, 2, 9, 4)
    return headwise.attention(q, q[:, :, :5], q[:, :, :5], record=True)[1]


def nan_where_it_is_seen() -> AttentionRecord:
    q = torch.randn(1, 2, 9, 4)
    q[0, 0, 3, 0] = torch.nan
    return headwise.attention(q, q, q, record=True)[1]


REFUSED = {
    "a batch": (batch_of_two, "B = 1.*B = 2"),
    "other keys than tokens": (fewer_keys, "Q = K = 9.*K = 5"),
    "a bias": (lambda: record(bias=torch.randn(1, 2, 9, 9)), "additive bias"),
    "NaN": (nan_where_it_is_seen, "finite"),
    "weights it would get wrong": (lambda: Wrong(record(), 0.9), "off the record"),
    "weights that are NaN": (lambda: Wrong(record(), float("nan")), "off the record"),
}


class Wrong:
    """A record whose weights follow from something that the page knows nothing of."""

    def __init__(self, seen: AttentionRecord, factor: float) -> None:
        self.seen, self.factor = seen, factor

    def __getattr__(self, name: str) -> object:
        return getattr(self.seen, name)

    def weights(self, **choice: object) -> torch.Tensor:
        return self.seen.weights(**choice) * self.factor


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_page_cannot_show_is_refused_and_leaves_the_old_page(reason: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("the old page", encoding="utf-8")
    make, message = REFUSED[reason]
    with pytest.raises(RecordError, match=message) as caught:
        write_page(page, [look(record()), look(record(), make())], title="")  # type: ignore[arg-type]
    assert "texts[1], layer 1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text(encoding="utf-8") == "the old page"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one text"),
        ([TextAttention(look(record()).tokens, [], [])], "0 records, 9 tokens"),
        ([dataclasses.replace(look(record()), layers=[0, 1])], r"1 records and layers \[0, 1\]"),
        ([dataclasses.replace(look(record(), record()), layers=[2, 2])], r"2 records and layers \[2, 2\]"),
    ],
)
def test_texts_that_do_not_add_up_are_refused(texts: list[TextAttention], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        write_page(tmp_path / "page.html", texts, title="")
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "page.html", tmp_path / "file" / "page.html", tmp_path / "folder"):
        with pytest.raises(FileError, match=re.escape(str(path))):
            write_page(path, [look(record())], title="")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_write_that_fails_at_its_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: Path, page: Path) -> None:
        assert part.stat().st_size > 10_000
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"page\.html: No space left on device"):
        write_page(tmp_path / "page.html", [look(record())], title="")
    assert not list(tmp_path.iterdir())
