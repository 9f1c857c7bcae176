"""A record in parts: split here by hand, without processes, and opened as one. tests/parallel has the processes."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headwise
from headwise import masks
from headwise.call import Share, make_call
from headwise.errors import FileError, RecordError
from headwise.masks.picked import picked
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.saving import PartOf, save
from headwise.records.whole import WholeRecord
from tests.parallel.records import same_record
from tests.records.forging import forge, header_of
from tests.records.parting import LENGTH, ROWS, record_of, split, whole_call, write


def test_by_hand(tmp_path: Path) -> None:
    """Four equal keys: each row's weights are one over its position; three rows are in one part, one in another."""
    call = make_call(torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2), mask=masks.causal())
    assert call.mask is not None
    parts = []
    for some in ([0, 2, 3], [1]):
        rows, keys = torch.tensor(some), torch.arange(some[-1] + 1)
        mask = picked(call.mask, rows, keys)
        part = make_call(call.q[:, :, rows], call.k[:, :, keys], call.v[:, :, keys], mask=mask)
        parts.append(AttentionRecord(dataclasses.replace(part, share=Share(rows, keys, 4, call.mask))))
    (record,) = headwise.load(write(tmp_path / "run.hw", parts))
    assert [path.name for path in sorted((tmp_path / "run.hw").iterdir())] == ["0-of-2.hw", "1-of-2.hw"]
    weights = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]]
    torch.testing.assert_close(record.weights()[0, 0], torch.tensor(weights))
    torch.testing.assert_close(
        record.weights(rows=[1, 3, 1], cols=[0, 2])[0, 0], torch.tensor(weights)[[1, 3, 1]][:, [0, 2]]
    )
    torch.testing.assert_close(record.distance()[0, 0], torch.tensor([0, 1 / 2, 1, 3 / 2]))
    torch.testing.assert_close(record.received()[0, 0], torch.tensor([25, 13, 7, 3]) / 12)
    torch.testing.assert_close(record.offset_mass(1)[0, 0], torch.tensor([0, 1 / 2, 1 / 3, 1 / 4]))
    torch.testing.assert_close(record.pooled(2)[0, 0], torch.tensor([[1 / 2, 0], [7 / 24, 5 / 24]]))
    torch.testing.assert_close(record.pooled(2, "max")[0, 0], torch.tensor([[1, 0], [1 / 3, 1 / 3]]))


def test_a_folder_of_parts_is_the_record(tmp_path: Path) -> None:
    call = whole_call()
    one, (opened,) = record_of(call), headwise.load(write(tmp_path / "run.hw", split(call)), verify=True)
    same_record(opened, one, "parts")
    assert isinstance(opened, WholeRecord)
    assert repr(opened).startswith("WholeRecord(B=2, H=4, N=60, of 3 parts, mask=causal")
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(opened, name), getattr(one, name))
    assert (opened.scale, opened.softcap, opened.dropout) == (one.scale, one.softcap, one.dropout)
    assert torch.equal(opened.sinks, call.sinks)  # type: ignore[arg-type]
    same_record(copy.deepcopy(opened), one, "a copy")
    same_record(AttentionRecord(opened.call, site=opened.site), one, "put together")


def test_parts_become_one_file(tmp_path: Path) -> None:
    """It is byte by byte that of one process."""
    call = whole_call()
    Seen([record_of(call)]).save(tmp_path / "one.hw")
    headwise.load(write(tmp_path / "parts.hw", split(call))).save(tmp_path / "again.hw")
    assert (tmp_path / "one.hw").read_bytes() == (tmp_path / "again.hw").read_bytes()


def test_few_rows_read_few_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = headwise.load(write(tmp_path / "run.hw", split(whole_call())))[0]
    asked = []
    weights = AttentionRecord.weights
    monkeypatch.setattr(
        AttentionRecord, "weights", lambda part, *a, **n: asked.append(part.shape[2]) or weights(part, *a, **n)
    )
    assert opened.weights(rows=[3, 6], cols=[1]).shape == (2, 4, 2, 1)
    assert asked == [len(ROWS[0])]


def test_a_key_that_its_own_part_does_not_need(tmp_path: Path) -> None:
    """It is taken from a part that has it. One that nobody has is 0."""
    call = whole_call()
    cols = [[i for i in range(58) if i != 6], list(range(59)), list(range(60))]
    parts = split(
        dataclasses.replace(call, mask=(masks.causal() & ~masks.global_tokens([6])).aligned(LENGTH, LENGTH)), cols
    )
    (opened,) = headwise.load(write(tmp_path / "run.hw", parts))
    assert torch.equal(opened.k, call.k)
    without = [[i for i in each if i != 6] for each in cols]
    (opened,) = headwise.load(write(tmp_path / "other.hw", split(call, without)))
    assert not opened.k[:, :, 6].any()


def test_a_part_alone_is_its_rows(tmp_path: Path) -> None:
    call = whole_call()
    folder = write(tmp_path / "run.hw", split(call))
    (part,) = headwise.load(folder / "1-of-3.hw")
    assert part.share.rows.tolist() == ROWS[1]
    expected = record_of(call).weights(rows=ROWS[1])[..., part.share.cols]
    torch.testing.assert_close(part.weights(), expected)
    torch.testing.assert_close(part.distance(), record_of(call).distance()[:, :, ROWS[1]])


def drop(folder: Path) -> None:
    (folder / "1-of-3.hw").unlink()


def add_another_run(folder: Path) -> None:
    save(Seen(split(whole_call())[:1]), folder / "x.hw", PartOf("b", 0, 3))


def add_a_copy(folder: Path) -> None:
    (folder / "copy.hw").write_bytes((folder / "0-of-3.hw").read_bytes())


def add_a_whole(folder: Path) -> None:
    Seen([record_of(whole_call())]).save(folder / "z.hw")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def other_layer(folder: Path) -> None:
    (record, *_) = split(whole_call())
    record.site = Site("layers.7", 0, "self", True, 4, 2)
    save(Seen([record]), folder / "0-of-3.hw", PartOf("a", 0, 3))


def other_option(folder: Path) -> None:
    call = dataclasses.replace(whole_call(), softcap=8.0)
    save(Seen(split(call)[2:]), folder / "2-of-3.hw", PartOf("a", 2, 3))


def without_values(folder: Path) -> None:
    (record, *_) = split(whole_call())
    record.extras.v = None
    save(Seen([record]), folder / "0-of-3.hw", PartOf("a", 0, 3))


def other_mask(folder: Path) -> None:
    call = dataclasses.replace(whole_call(), mask=masks.window(9, 0).aligned(LENGTH, LENGTH))
    save(Seen(split(call)[2:]), folder / "2-of-3.hw", PartOf("a", 2, 3))


def same_rows(folder: Path) -> None:
    save(Seen(split(whole_call())[:1]), folder / "1-of-3.hw", PartOf("a", 1, 3))


def more_layers(folder: Path) -> None:
    save(Seen(split(whole_call())[:1] * 2), folder / "0-of-3.hw", PartOf("a", 0, 3))


def fewer_rows(folder: Path) -> None:
    record = split(whole_call())[2]
    call = record.call
    rows = call.share.rows[:-1]
    share = dataclasses.replace(call.share, rows=rows)
    mask = picked(call.share.mask, rows, share.cols)  # type: ignore[arg-type]
    part = AttentionRecord(dataclasses.replace(call, q=call.q[:, :, :-1], mask=mask, share=share), site=record.site)
    part.extras = record.extras
    save(Seen([part]), folder / "2-of-3.hw", PartOf("a", 2, 3))


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (drop, FileError, r"expected the 3 parts of its run\. Received: 2\. Missing: 1-of-3\.hw\. Copy them"),
        (add_another_run, FileError, r"which are 0-of-3\.hw, 1-of-3\.hw, 2-of-3\.hw\. Received also: x\.hw\. Move"),
        (add_a_copy, FileError, r"Received also: copy\.hw"),
        (add_a_whole, FileError, r"Received also: z\.hw"),
        (empty, FileError, r"run\.hw holds no parts of records"),
        (other_layer, RecordError, r"parts 0 and 1 are not of one record: layer=layers\.7 and layers\.0\.attention"),
        (other_option, RecordError, r"parts 0 and 2 are not of one record: softcap=9\.0 and 8\.0"),
        (without_values, RecordError, r"parts 0 and 1 are not of one record: v=None and \(torch\.float64"),
        (other_mask, RecordError, r"parts 0 and 2 are not of one record: their masks differ"),
        (same_rows, RecordError, r"part 1 has rows that another one has too"),
        (more_layers, RecordError, r"its parts have 2, 1, 1 records"),
        (fewer_rows, RecordError, r"the 3 parts have 59 of 60 rows"),
    ],
)
def test_what_does_not_belong_together(
    change: Callable[[Path], None], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "run.hw", split(whole_call()))
    change(folder)
    with pytest.raises(kind, match=said):
        headwise.load(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda share, part: share.update(length=10), "share: expected 20 rows of 10 that rise"),
        (lambda share, part: share.update(rows="records.0.q"), "share: expected 20 rows of 60 that rise"),
        (lambda share, part: share.update(cols=share["rows"]), "share: expected 58 cols of 60 that rise"),
        (lambda share, part: share.pop("cols"), "cols: expected in every Share"),
        (lambda share, part: part.update(number=3), "part: expected a number below 3. Received: number=3"),
    ],
)
def test_what_a_file_says_of_its_part_is_checked(
    change: Callable[[dict[str, object], dict[str, object]], None], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "run.hw", split(whole_call())) / "0-of-3.hw"
    header, data = header_of(path)
    description = header["__metadata__"]["description"]
    change(description["records"][0]["share"], description["part"])
    forge(path, header, data)
    with pytest.raises((RecordError, FileError), match=said):
        headwise.load(path)


def test_a_file_of_a_part_says_version_3(tmp_path: Path) -> None:
    """Programs that do not know of parts open it as a record of its rows; other files stay as they were."""
    path = write(tmp_path / "run.hw", split(whole_call())) / "0-of-3.hw"
    metadata = header_of(path)[0]["__metadata__"]
    assert metadata["headwise"] == "3"
    assert metadata["description"]["part"] == {"run": "a", "number": 0, "count": 3}
    Seen([record_of(whole_call())]).save(tmp_path / "one.hw")
    assert "part" not in json.dumps(header_of(tmp_path / "one.hw")[0]["__metadata__"]["description"])
