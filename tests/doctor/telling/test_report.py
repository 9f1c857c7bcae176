"""What a diagnosis looks like: to a person, and to a program that reads its JSON."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from headwise.doctor.catalogue import CATALOGUE, check_names, links
from headwise.doctor.finding import Finding, Where
from headwise.doctor.result import Diagnosis
from headwise.doctor.telling.report import as_text, report
from headwise.errors import ArgumentError
from headwise.language import Sentence, said

SCALE = Finding(
    name="wrong-scale",
    severity="bug",
    evidence=Sentence(
        "scores are divided by {divisor:.3f} = sqrt({size}), the model width; the head width is 16, expected "
        "{expected:.3f}"
    ).format(divisor=8.0, size=64, expected=4.0),
    fix="divide by self.head_dim ** 0.5",
    where=Where("my_model.py", 31, "attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)"),
    sources=("vit-pytorch #65", "set_transformer #18"),
)
RISK = Finding("empty-row-nan", "risk", "a row without keys gives NaN", "give it 0")
NOTE = Finding("weights-averaged", "note", "the weights are a mean over 4 heads", "average_attn_weights=False")


def diagnosis(*findings: Finding, **more: object) -> Diagnosis:
    known = {"understood": ("forward(x): one input",), "unchecked": {"rope": "nothing is rotated"}, **more}
    return Diagnosis("MyAttention", findings, **known)  # type: ignore[arg-type]


def test_a_report_says_all_of_a_finding() -> None:
    assert as_text(diagnosis(SCALE, RISK)) == "\n".join(
        [
            "MyAttention",
            "  forward(x): one input",
            "",
            "bug  wrong-scale  The scores are not divided by the square root of the head width",
            "  evidence  scores are divided by 8.000 = sqrt(64), the model width; the head width is 16, expected",
            "            4.000",
            "  where     my_model.py:31",
            "                attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)",
            "  fix       divide by self.head_dim ** 0.5",
            "  see       vit-pytorch #65, set_transformer #18",
            "",
            "risk  empty-row-nan  A query with no allowed key gives NaN",
            "  evidence  a row without keys gives NaN",
            "  fix       give it 0",
            "",
            "not checked",
            "  rope  nothing is rotated",
            "",
            "1 bug, 1 risk. Fix wrong-scale at my_model.py:31 first, then run the doctor again.",
        ]
    )
    assert str(diagnosis(SCALE, RISK)) == as_text(diagnosis(SCALE, RISK))


@pytest.mark.parametrize(
    ("found", "last"),
    [
        (diagnosis(unchecked={}), "Healthy: no bug, no risk."),
        (diagnosis(), "No bug and no risk was found, but 1 check could not be made."),
        (diagnosis(NOTE, unchecked={}), "Healthy: no bug, no risk.  1 note: --notes"),
        (diagnosis(RISK, RISK, unchecked={}), "No bug; 2 risks."),
        (diagnosis(SCALE, unchecked={}), "1 bug. Fix wrong-scale at my_model.py:31, then run the doctor again."),
        (Diagnosis("X", ()), "No bug was found, but nothing was understood either."),
    ],
)
def test_the_last_line_is_what_it_comes_to(found: Diagnosis, last: str) -> None:
    assert as_text(found).endswith(f"\n{last}")


def test_sources_are_links_on_a_terminal() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=100, legacy_windows=False).print(report(diagnosis(SCALE)))
    assert "https://github.com/lucidrains/vit-pytorch/issues/65" in out.getvalue()
    assert "https://github.com/juho-lee/set_transformer/issues/18" in out.getvalue()


def test_a_text_from_foreign_code_cannot_steer_the_terminal() -> None:
    hostile = Finding("wrong-scale\x1b[2J", "bug", "[red]\x1b]0;title\x07", "\u202e[/]", Where("a\nb.py", 1, "\x9b31m"))
    out = io.StringIO()
    found = Diagnosis("\x1b[31m[bold]X", (hostile,), ("\x08",), {"\x1b": "\x07[/b]"})
    Console(file=out, force_terminal=False, width=100).print(report(found))
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue()) is None
    assert "[bold]X" in out.getvalue()
    assert "[red]" in out.getvalue()


def test_paths_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Where(str(tmp_path / "models" / "mine.py"), 3)
    assert str(where) == f"{tmp_path}/models/mine.py:3"
    monkeypatch.chdir(tmp_path)
    assert str(where) == "models/mine.py:3"
    assert str(Where("/usr/lib/python3/site-packages/transformers/a.py", 7)) == "transformers/a.py:7"


def test_json_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosis(SCALE, RISK, seconds=1.25, where=Where("my_model.py", 7, "class MyAttention(nn.Module):"))
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert written["healthy"] is False
    assert written["findings"][0]["where"]["line"] == 31
    assert written["findings"][0]["numbers"] == {"divisor": 8.0, "size": 64, "expected": 4.0}
    again = Diagnosis.from_dict(written)
    assert again == found
    assert [x.numbers for x in again.findings] == [x.numbers for x in found.findings]
    odd = Sentence("{{x}} of {largest} and {scale}").format(largest=math.inf, scale=2.0)
    written = json.loads(json.dumps(Finding("softmax-unstable", "risk", odd, "").to_dict(), allow_nan=False))
    assert written["numbers"] == {"largest": None, "scale": 2.0}  # JSON has no infinity
    evidence = Finding.from_dict(written).evidence
    assert isinstance(evidence, Sentence)
    assert math.isnan(evidence.numbers["largest"])
    monkeypatch.setenv("HEADWISE_LANG", "zh")
    assert said(evidence) == "{x} of inf and 2.0"  # as it was written: its template is not known


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "pytorch #41508 #103963",
            [
                ("pytorch #41508", "https://github.com/pytorch/pytorch/issues/41508"),
                ("#103963", "https://github.com/pytorch/pytorch/issues/103963"),
            ],
        ),
        ("someone/thing #2", [("someone/thing #2", "https://github.com/someone/thing/issues/2")]),
        ("Vaswani 2017", [("Vaswani 2017", None)]),
        ("nobody knows #3", [("nobody knows #3", None)]),
    ],
)
def test_where_sources_lead(source: str, expected: list[tuple[str, str | None]]) -> None:
    assert links(source) == expected


def test_the_catalogue_covers_the_ways_and_each_thread_is_a_link() -> None:
    """16 and 19 are found together, as what a cache or left padding changes; 20 as a wrong scale."""
    assert {entry.way for entry in CATALOGUE.values()} >= set(range(1, 35)) - {19, 20}
    sources = (source for entry in CATALOGUE.values() for source in entry.sources)
    assert all(address for source in sources for _, address in links(source))


def test_a_name_that_is_none_is_refused() -> None:
    assert check_names("wrong-scale", "ignore") == {"wrong-scale"}
    assert check_names(["wrong-scale", "hangs"], "ignore") == {"wrong-scale", "hangs"}
    with pytest.raises(ArgumentError, match=r"ignore: every name .*'wrong-scal'. Did you mean 'wrong-scale'"):
        check_names(["wrong-scal"], "ignore")


def test_the_document_lists_the_catalogue() -> None:
    text = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\d*) ?\| (\w+) \| ([^|]+) \| ?([^|]*)\|$", text, re.MULTILINE)
    expected = [
        (x.name, str(x.way or ""), x.severity, x.title, ", ".join(_linked(source) for source in x.sources))
        for x in CATALOGUE.values()
    ]
    assert [tuple(cell.strip() for cell in row) for row in rows] == expected


def _linked(source: str) -> str:
    return " ".join(f"[{text}]({address})" for text, address in links(source))
