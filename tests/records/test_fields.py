"""Fields of files: which there are, how each value is checked, and what becomes of fields that are new or missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import headwise
from headwise.errors import RecordError
from headwise.records import Coverage, Seen, Site, saving
from headwise.records.fields import FieldReader, stored_fields
from tests.records.forging import forge, header_of, record


@dataclasses.dataclass(frozen=True)
class Inner:
    number: int


@dataclasses.dataclass(frozen=True)
class Outer:
    word: str
    share: float
    kind: Literal["one", "two"]
    flag: bool
    inner: Inner | None
    pairs: tuple[tuple[int, str], ...]
    tensor: Tensor | None = dataclasses.field(metadata={"dims": "BH"})
    later: int = dataclasses.field(default=7, metadata={"since": 3})
    here: int = dataclasses.field(default=0, metadata={"stored": False})


GOOD: dict[str, Any] = {
    "word": "猫",
    "share": 1,
    "kind": "two",
    "flag": True,
    "inner": {"number": 3},
    "pairs": [[1, "a"], [2, "b"]],
    "tensor": "records.0.q",
}
EYE = torch.eye(2)


def reader() -> FieldReader:
    return FieldReader({Tensor: {"records.0.q": EYE}.__getitem__})


def test_every_value_becomes_what_its_field_is() -> None:
    read = reader().read(Outer, GOOD)
    assert dataclasses.astuple(dataclasses.replace(read, tensor=None))[:6] == (
        *("\u732b", 1.0, "two", True, (3,)),
        ((1, "a"), (2, "b")),
    )
    assert type(read.share) is float
    assert read.tensor is EYE
    assert (read.later, read.here) == (7, 0)
    assert reader().read(Inner, [3]) == Inner(3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("word", 3, "word: expected str. Received: 3"),
        ("word", None, "word: expected str. Received: None"),
        ("share", "1", "share: expected float. Received: '1'"),
        ("share", True, "share: expected float. Received: True"),
        ("share", 10**400, "share: expected float. Received: 1000"),
        ("kind", "three", "kind: expected Literal['one', 'two']. Received: 'three'"),
        ("kind", ["one"], "kind: expected Literal['one', 'two']. Received: list"),
        ("flag", 1, "flag: expected bool. Received: 1"),
        ("inner", {"number": 1.5}, "inner: number: expected int. Received: 1.5"),
        ("inner", {"number": True}, "inner: number: expected int. Received: True"),
        ("inner", {}, "inner: number: expected in every Inner. Received: none"),
        ("inner", [], "inner: expected what Inner is made of. Received: list"),
        ("pairs", {}, "pairs: expected tuple[tuple[int, str], ...]. Received: dict"),
        ("pairs", [[1]], "pairs: expected tuple[int, str]. Received: list"),
        ("pairs", [[1, 2]], "pairs: expected str. Received: 2"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(RecordError) as error:
        reader().read(Outer, {**GOOD, name: value})
    assert message in str(error.value)
    assert len(str(error.value)) < 200


def test_a_field_that_may_be_none_or_has_a_default_may_be_missing() -> None:
    short = {name: value for name, value in GOOD.items() if name not in ("inner", "tensor")}
    read = reader().read(Outer, short)
    assert (read.inner, read.tensor, read.later) == (None, None, 7)
    with pytest.raises(RecordError, match="word: expected in every Outer"):
        reader().read(Outer, {name: value for name, value in GOOD.items() if name != "word"})


def test_what_is_not_known_is_ignored_and_named() -> None:
    found, plain = reader(), {**GOOD, "tensor": None}  # Python 3.13 asks a tensor, too, whether it equals itself
    assert found.read(Outer, {**plain, "here": 5, "inner": {"number": 3, "more": []}}) == found.read(Outer, plain)
    assert set(found.ignored) == {"Outer.here", "Inner.more"}
    assert found.read(Inner, [3, "more"]) == Inner(3)
    assert "Inner.[1]" in found.ignored


# --- In files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "3"])
def test_fields_of_a_newer_headwise_are_ignored_with_a_note(tmp_path: Path, version: str) -> None:
    kept = record()
    kept.site = Site("layer.0", 0, "cross", False, 4, 2)
    Seen([kept, kept], Coverage(notes=("a note",))).save(tmp_path / "run.hw")
    header, data = header_of(tmp_path / "run.hw")
    header["__metadata__"]["headwise"] = version
    description = header["__metadata__"]["description"]
    description["era"] = {"of": "tomorrow"}
    for entry in description["records"]:
        entry["rows"] = [0, 5]
        entry["site"]["block"] = "x" * 10_000
    forge(tmp_path / "run.hw", header, data)
    loaded = headwise.load(tmp_path / "run.hw")
    assert torch.equal(loaded.records[0].weights(), kept.weights())
    assert loaded.records[1].site == kept.site
    first, note = loaded.coverage().notes
    assert (first, note) == (
        "a note",
        "the file was written by a newer headwise: Description.era, Site.block, record.rows ignored",
    )
    assert note in str(loaded.coverage())


def test_the_note_stays_short_whatever_a_file_says(tmp_path: Path) -> None:
    Seen([record()]).save(tmp_path / "run.hw")
    header, data = header_of(tmp_path / "run.hw")
    header["__metadata__"]["description"]["records"][0].update({f"{i}" * 10_000: i for i in range(9)})
    forge(tmp_path / "run.hw", header, data)
    (note,) = headwise.load(tmp_path / "run.hw").coverage().notes
    assert len(note) < 400
    assert note.endswith("and 5 more ignored")


@dataclasses.dataclass(frozen=True)
class NewerFields(saving.RecordFields):
    """As in a later version, in which a record also says which run it is from."""

    run: str = dataclasses.field(default="", metadata={"since": 3})


@dataclasses.dataclass(frozen=True)
class MuchNewerFields(saving.RecordFields):
    """As in a later version, without whose new field the weights would be wrong."""

    temperature: float = dataclasses.field(default=1.0, metadata={"since": 5})


def test_a_field_that_is_added_is_in_the_file_where_it_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record()
    Seen([kept]).save(tmp_path / "today.hw")
    monkeypatch.setattr(saving, "RecordFields", NewerFields)
    kept.run = ""  # type: ignore[attr-defined]
    Seen([kept]).save(tmp_path / "default.hw")
    assert (tmp_path / "default.hw").read_bytes() == (tmp_path / "today.hw").read_bytes()
    kept.run = "the third"  # type: ignore[attr-defined]
    Seen([kept]).save(tmp_path / "newer.hw")
    header, _ = header_of(tmp_path / "newer.hw")
    assert header["__metadata__"]["headwise"] == "3"
    assert header["__metadata__"]["description"]["records"][0]["run"] == "the third"
    loaded = headwise.load(tmp_path / "newer.hw")  # by this version, which does not know it
    assert torch.equal(loaded[0].weights(), kept.weights())
    assert "record.run ignored" in str(loaded.coverage())


def test_a_field_that_weights_need_is_refused_by_who_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "RecordFields", MuchNewerFields)
    kept = record()
    kept.temperature = 2.0  # type: ignore[attr-defined]
    Seen([kept]).save(tmp_path / "newer.hw")
    with pytest.raises(headwise.errors.FileError, match=r"Received: version 5\. Upgrade: pip install -U headwise"):
        headwise.load(tmp_path / "newer.hw")


def test_fields_that_are_newer_than_0_1_0_say_so() -> None:
    """0.1.0 refuses a record with a field that it does not know: such files have a version that it does not open."""
    header, _ = header_of(Path(__file__).parents[1] / "data" / "seen-0.1.0.hw")
    description = header["__metadata__"]["description"]
    (first, second), (names,) = description["records"], [description["names"]]
    assert names
    from headwise.records.storage import _RECORD

    assert {name for name, field in _RECORD.items() if field.since == 1} == first.keys()
    assert {name for name, field in _RECORD.items() if field.since == 2} == {*second, "col_names"} - first.keys()
    assert {name for name, field in stored_fields(Site).items() if field.since == 1} == first["site"].keys()
    assert len(description["coverage"]["sites"][0]) == 4
