"""SARIF as GitHub's code scanning takes it.

What it demands: docs.github.com, "SARIF support for code scanning".
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from headwise.doctor.finding import Finding, Where
from headwise.doctor.result import Diagnosis
from headwise.doctor.telling.sarif import sarif as made_of

sarif = functools.partial(made_of, version="1.2.3")
CODE = "        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)\n"


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """Two diagnoses: with a line in a file of the working directory, with none, with one elsewhere."""
    project = tmp_path / "project"
    (project / "my models").mkdir(parents=True)
    (project / "my models" / "a.py").write_text("class A:\n    def forward(self):\n" + CODE, encoding="utf-8")
    monkeypatch.chdir(project)
    scale = Finding(
        "wrong-scale",
        "bug",
        "divided by 8",
        "divide by 4",
        Where("my models/a.py", 3, CODE.strip()),
        ("vit-pytorch #65",),
    )
    row = Finding("empty-row-nan", "risk", "NaN", "give it 0")
    weights = Finding(
        "weights-averaged", "note", "a mean", "say so", Where(str(tmp_path / "elsewhere.py"), 9, "return x")
    )
    return [
        Diagnosis("A", (scale, row), where=Where("my models/a.py", 1, "class A:")),
        Diagnosis("B", (scale, weights)),
    ]


def test_it_has_what_code_scanning_demands(found: list[Diagnosis]) -> None:
    log = json.loads(json.dumps(sarif(found), allow_nan=False))
    check_structure(log)
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        "wrong-scale",
        "empty-row-nan",
        "weights-averaged",
    ]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "error", "note"]
    assert run["results"][0]["message"]["text"] == "A: divided by 8. Fix: divide by 4."
    assert sarif([Diagnosis("A", ())])["runs"][0]["results"] == []  # so that what an earlier run reported is closed


def check_structure(log: dict[str, Any]) -> None:
    """The properties that code scanning requires."""
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    assert log["$schema"].endswith("sarif-2.1.0.json")
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for rule in rules:
        texts = (rule["shortDescription"]["text"], rule["fullDescription"]["text"], rule["help"]["text"])
        assert all(0 < len(text) <= 1024 for text in texts)
        assert rule["properties"]["precision"] == "high"
        assert urlparse(rule.get("helpUri", "https://x")).scheme == "https"
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert all(region[name] >= 1 for name in ("startLine", "startColumn", "endLine"))
        assert region["endColumn"] >= region["startColumn"]


def test_where_a_finding_stands(found: list[Diagnosis], tmp_path: Path) -> None:
    """Its line relative to the working directory, else that of its class; a file elsewhere by its whole address."""
    log = sarif(found)["runs"][0]["results"]
    line, of_class, _, elsewhere = (x["locations"][0]["physicalLocation"] for x in log)
    assert line["artifactLocation"] == {"uri": "my%20models/a.py", "uriBaseId": "%SRCROOT%"}
    region = line["region"]
    assert (region["startLine"], region["endLine"]) == (3, 3)
    assert CODE[region["startColumn"] - 1 : region["endColumn"] - 1] == CODE.strip()
    assert region["snippet"]["text"] == CODE.strip()
    assert (of_class["artifactLocation"]["uri"], of_class["region"]["startLine"]) == ("my%20models/a.py", 1)
    address = urlparse(elsewhere["artifactLocation"]["uri"])
    assert (address.scheme, unquote(address.path)) == ("file", str(tmp_path / "elsewhere.py"))


def test_a_fingerprint_follows_the_code_and_not_its_number(found: list[Diagnosis]) -> None:
    def prints(*subjects: str, code: str = CODE.strip()) -> list[str]:
        lines = (Where("my models/a.py", 30 + i, code) for i in range(2))
        both = tuple(Finding("wrong-scale", "bug", "", "", where) for where in lines)
        results = sarif([Diagnosis(name, both) for name in subjects])["runs"][0]["results"]
        return [str(result["partialFingerprints"]["primaryLocationLineHash"]) for result in results]

    of_a, again, of_b, _ = prints("A", "B")
    assert of_a.partition(":")[0] == again.partition(":")[0]  # equal lines have numbers
    assert (of_a[-1], again[-1]) == ("1", "2")
    known = sarif(found)["runs"][0]["results"][0]["partialFingerprints"]["primaryLocationLineHash"]
    assert known == of_a != of_b
    assert prints("A", code="other")[0] != of_a


def test_an_editor_finds_the_files_by_their_root(found: list[Diagnosis], tmp_path: Path) -> None:
    run = sarif(found, root=tmp_path)["runs"][0]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    root = urlparse(run["originalUriBaseIds"][place["uriBaseId"]]["uri"])
    assert root.scheme == "file"
    assert unquote(root.path + place["uri"]) == str(tmp_path / "project" / "my models" / "a.py")
