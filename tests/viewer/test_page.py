"""The file: small, whole or not there at all, closed to whatever a text may try, and never a wrong picture."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.call import AttentionCall
from headwise.errors import DtypeError, FileError, RecordError
from headwise.models.checkpoint import default_model
from headwise.records import AttentionRecord
from headwise.text import Tokenizer, Tokens
from headwise.viewer import facts_of, inputs_of, page_of, write_page

from .conftest import HOSTILE, Page, look, placed, record, tags, write

ROOT = Path(__file__).parents[2]


def test_a_real_model_over_512_tokens_takes_seven_megabytes(tmp_path: Path) -> None:
    folder = default_model()
    bert, tokenizer = headwise.Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder)
    read = tokenizer.encode((ROOT / "examples/attention.txt").read_text("utf-8") * 3, max_length=512)
    mask = torch.ones(1, 512, dtype=torch.long)
    mask[:, 500:] = 0
    with torch.no_grad(), headwise.watch(bert, tokens=[read]) as seen:
        bert(torch.tensor([read.ids]), real=mask)
    assert seen[0].shape == (1, 12, 512, 512)
    assert len(seen) == 6
    page = tmp_path / "page.html"
    headwise.view(seen, page)
    assert round(page.stat().st_size / 1e6, 1) <= 7.0


def test_the_facts_of_a_page(tmp_path: Path) -> None:
    seen = look(record(heads=4, kv_heads=2, softcap=5.0, scale=0.5, mask=masks.causal()), record(heads=4, kv_heads=4))
    path = tmp_path / "page.html"
    write_page(path, inputs_of({"one": seen}), title="A <title>", made='{"one": headwise.load("run.hw")}')
    facts = Page.read(path).facts
    assert facts["title"] == "A <title>"
    assert facts["made"] == '{"one": headwise.load("run.hw")}'
    assert (facts["source"], facts["tolerance"]) == ("embedded", 1e-4)
    assert [each["name"] for each in facts["inputs"]] == ["one"]
    (stack,) = facts["inputs"][0]["stacks"]
    assert (stack["name"], stack["kind"], stack["rows"], stack["cols"], stack["example"]) == ("self", "self", 0, 0, 0)
    first, second = stack["layers"]
    assert {key: first[key] for key in ("name", "number", "heads", "kvHeads", "masked", "expression", "dim")} == {
        "name": "layers.0",
        "number": 0,
        "heads": 4,
        "kvHeads": 2,
        "masked": True,
        "expression": 'seen["one"][0]',
        "dim": 4,
    }
    assert (first["scale"], first["softcap"], first["bias"]) == (0.5, 5.0, None)
    assert (second["scale"], second["softcap"], second["masked"], second["planes"]) == (0.5, None, False, None)
    blocks = [group["block"] for group in first["groups"]]
    assert blocks == ["input0-stack0-layer0-group0", "input0-stack0-layer0-group1"]
    assert len(second["groups"]) == 4


def test_a_bias_that_forbids_is_a_mask_to_the_reader(tmp_path: Path) -> None:
    seen = look(
        record(bias=torch.randn(9, 9)), record(bias=torch.randn(9, 9).masked_fill(torch.eye(9) > 0, -torch.inf))
    )
    layers = write(tmp_path / "page.html", seen).stack()["layers"]
    assert [layer["masked"] for layer in layers] == [False, True]


def test_the_facts_for_a_server_are_the_same_without_the_numbers(tmp_path: Path) -> None:
    inputs = inputs_of(look(record(mask=masks.causal()), record()))
    embedded, server = write(tmp_path / "page.html", look(record())).facts, facts_of(inputs, title="A page")
    assert embedded.keys() == server.keys()
    assert (server["source"], server["tolerance"], server["made"]) == ("server", 0, None)
    told, other = (facts["inputs"][0]["stacks"][0]["layers"][0].keys() for facts in (embedded, server))
    assert set(told) - set(other) == {"dim", "scale", "softcap", "planes", "bias", "sinks", "groups"}
    page = Page("".join(page_of(server)))
    assert page.blocks == {}
    assert page.facts["inputs"][0]["stacks"][0]["layers"][1]["expression"] == "seen[1]"


def test_examples_that_read_the_same_share_their_axis(tmp_path: Path) -> None:
    page = write(
        tmp_path / "page.html", look(record(batch=2)), look(record()), look(record(), labels=list("abcdefghi"))
    )
    assert len(page.facts["axes"]) == 2
    assert [page.stack(i)["rows"] for i in range(4)] == [0, 0, 0, 1]


# --- Text -------------------------------------------------------------------------------------------------------------


def test_words_and_gaps_give_the_text_back(tmp_path: Path) -> None:
    read = Tokens(
        ids=(101, 1, 2, 3, 3),
        text="  a cat\n 🐈",
        labels=("[CLS]", "a", "cat", "🐈(1/2)", "🐈(2/2)"),
        offsets=((0, 0), (2, 3), (4, 7), (9, 10), (9, 10)),
        special=(True, False, False, False, False),
        cut=3,
    )
    seen = look(record(length=5))
    seen.tokens = [read]
    axis, _ = write(tmp_path / "page.html", seen).axes()
    assert axis["pieces"] == ["[CLS]", "a", "cat", "🐈", "🐈(2/2)"]
    assert axis["gaps"] == ["", "  ", " ", "\n ", ""]
    assert axis["words"] == {"index": [0, 1, 2, 3, 3], "labels": ["[CLS]", "a", "cat", "🐈"]}
    assert axis["sentences"]["index"] == [0, 1, 1, 2, 2]
    assert axis["special"] == [True, False, False, False, False]
    assert axis["unknown"] == [False] * 5
    assert (axis["cut"], axis["text"], axis["patches"]) == (3, True, None)


def test_numbers_are_names_and_no_text(tmp_path: Path) -> None:
    rows, cols = write(tmp_path / "page.html", look(record(length=2, keys=3))).axes()
    assert (rows["text"], cols["text"]) == (False, False)
    assert cols["labels"] == cols["pieces"] == ["0", "1", "2"]
    assert cols["words"] == cols["sentences"] == {"index": [0, 1, 2], "labels": ["0", "1", "2"]}


def test_a_text_cannot_leave_its_place(tmp_path: Path) -> None:
    labels = [*HOSTILE[1:], HOSTILE[0] + "\ud800"]  # half a surrogate pair: no UTF-8 has it
    seen = look(record(), labels=labels)
    placed(seen.records[0], "".join(labels))
    path = tmp_path / "page.html"
    write_page(path, inputs_of({"".join(labels): seen}), title="".join(labels), made="".join(labels))
    page = Page.read(path)
    assert page.axes()[0]["labels"] == labels
    assert page.stack()["layers"][0]["name"] == "".join(labels)
    assert page.facts["inputs"][0]["name"] == page.facts["made"] == "".join(labels)
    assert "\u2028" not in re.sub(r"(?s)<title>.*?</title>", "", page.source)
    expected = write(tmp_path / "plain.html", look(record()))
    assert tags(page.source) == tags(expected.source)
    assert "img" not in tags(page.source)


# --- The document -----------------------------------------------------------------------------------------------------


def test_the_policy_allows_the_script_and_the_style_in_the_file_and_nothing_else(tmp_path: Path) -> None:
    source = write(tmp_path / "page.html", look(record())).source
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', source)
    script = re.search(r'(?s)<script type="module">(.*?)</script>', source)
    style = re.search(r"(?s)<style>(.*?)</style>", source)
    allowed = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert allowed == {
        "default-src": "'none'",
        "img-src": "data: blob:",
        "script-src": digest(script[1]),
        "style-src": digest(style[1]),
        "worker-src": "blob:",
    }
    server = "".join(page_of(facts_of(inputs_of(record()), title="")))
    assert "connect-src 'self'" in server  # its own server, which it asks for the weights


def digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def test_the_page_names_nothing_outside_itself(tmp_path: Path) -> None:
    source = write(tmp_path / "page.html", look(record()), title="A title").source
    assert re.findall(r'(?:src|href|action)="([^"]*)"', source) == ["data:,"]
    assert not re.search(r"url\((?!#)|@import|XMLHttpRequest|WebSocket|innerHTML|document\.write|\beval\(", source)
    source = re.sub(r"(?<!:)//[^\n]*", "", source)  # comments may cite
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", source))
    kinds = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}  # names of kinds of XML
    assert {each for each in addresses if not each.startswith("http://schemas.openxmlformats.org/")} <= kinds


# --- What cannot be shown or written ----------------------------------------------------------------------------------


def nan_where_it_is_seen() -> AttentionRecord:
    q = torch.randn(1, 2, 9, 4)
    q[0, 0, 3, 0] = torch.nan
    return headwise.attention(q, q, q, record=True)[1]


def nan_in_the_bias() -> AttentionRecord:
    bias = torch.zeros(9, 9)
    bias[2, 3] = torch.nan
    return record(bias=bias)


class Wrong(AttentionCall):
    """A call whose weights follow from something that the page knows nothing of."""

    factor = 0.9

    def scores(self, *choice: Any, **more: Any) -> torch.Tensor:
        return super().scores(*choice, **more) * self.factor


class Unknown(Wrong):
    factor = float("nan")


def other(kind: type[AttentionCall]) -> AttentionRecord:
    found = record()
    found._call = kind(**vars(found.call), v=found.k)
    return found


REFUSED: dict[str, tuple[Callable[[], AttentionRecord], str]] = {
    "NaN": (nan_where_it_is_seen, "expected finite queries and keys where the mask allows them. Received: NaN or inf"),
    "NaN in a bias": (nan_in_the_bias, "the page's weights would differ from the record's by nan"),
    "weights it would get wrong": (
        lambda: other(Wrong),
        r"would differ from the record's by \d.*, expected at most 1e-04",
    ),
    "weights that are NaN": (lambda: other(Unknown), "would differ from the record's by nan"),
}


OLD = '<meta name="generator" content="headwise 0.2.0">the old page'


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_page_cannot_show_is_refused_and_leaves_the_old_page(reason: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(OLD, encoding="utf-8")
    make, message = REFUSED[reason]
    with pytest.raises(RecordError, match=message) as caught:
        write_page(page, inputs_of([look(record()), look(record(), make())]), title="")
    assert str(caught.value).startswith("layers.1 (seen[1][1]): ")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text(encoding="utf-8") == OLD


def test_only_a_page_of_headwise_is_written_over(tmp_path: Path) -> None:
    page, seen = tmp_path / "page.html", record()
    for beginning in ("", OLD, '<body>\n<div id="page"><p>Opening … If this message stays'):  # empty, ours, ours of 0.2
        page.write_text(beginning, encoding="utf-8")
        write_page(page, inputs_of(seen), title="")
        write_page(page, inputs_of(seen), title="again")
    page.write_text("<html>my thesis</html>", encoding="utf-8")
    with pytest.raises(FileError, match=r"page\.html exists, and headwise did not write it\. Choose another file"):
        write_page(page, inputs_of(seen), title="")
    assert page.read_text(encoding="utf-8") == "<html>my thesis</html>"


def test_arguments_the_wrong_way_round_are_told() -> None:
    with pytest.raises(
        DtypeError, match=r"out must be a path. Received: AttentionRecord. The order is view\(seen, path"
    ):
        headwise.view("page.html", record())  # type: ignore[arg-type]


def test_a_page_knows_its_model_its_date_and_the_version_that_wrote_it(tmp_path: Path) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    with torch.no_grad(), headwise.watch(layer) as seen:
        layer(x, x, x)
    seen.save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw")
    assert loaded.model == seen[:1].model == "MultiheadAttention"
    page = write(tmp_path / "page.html", loaded)
    about = page.facts["about"]
    assert about == {"model": "MultiheadAttention", "date": date.today().isoformat(), "version": headwise.__version__}
    assert f'content="headwise {headwise.__version__}"' in page.source


def test_a_page_that_no_browser_would_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record(heads=2, length=9, dim=4)  # 144 numbers
    monkeypatch.setattr("headwise.viewer.page.LARGEST_PAGE", 287)  # two characters a number, at the least
    with pytest.raises(RecordError, match=r"the page would take .* GB or more, .* headwise view run\.hw --serve"):
        write_page(tmp_path / "page.html", inputs_of(seen), title="")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("headwise.viewer.page.LARGEST_PAGE", 288)
    write_page(tmp_path / "page.html", inputs_of(seen), title="")


def test_a_page_that_cannot_be_written_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "page.html", tmp_path / "file" / "page.html", tmp_path / "folder"):
        with pytest.raises(FileError, match=re.escape(str(path))):
            write_page(path, inputs_of(record()), title="")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_write_that_fails_at_its_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: Path, page: Path) -> None:
        assert part.stat().st_size > 10_000
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"page\.html: No space left on device"):
        write_page(tmp_path / "page.html", inputs_of(record()), title="")
    assert not list(tmp_path.iterdir())
