"""Files that are damaged, forged, newer or of somebody else: one clear error each, and nothing is ever executed."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import headwise
from headwise import masks
from headwise.errors import FileError, HeadwiseError, RecordError
from headwise.records import CallSite, Coverage, Extras, Seen, Site, tensor_file
from tests.records.forging import assert_same, forge, header_of, record


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file of two records with masks, extras and tokens."""
    first = record(masks.causal() & masks.lengths([12, 5]), bias=torch.randn(10, 12), sinks=torch.randn(4))
    first.extras = Extras(v=torch.randn(2, 2, 12, 6), grad=torch.randn(2, 4, 10, 6))
    first.site = Site("layer.0", 0, "cross", True, 4, 2)
    second = record(masks.window(3, 3) | ~masks.from_tensor(torch.rand(10, 12) > 0.5))
    second.site = Site("layer.1", 1, "cross", False, 4, 2)
    seen = Seen([first, second], Coverage((CallSite("layer.0", "seen", 1, "sdpa"),), ("a note",)))
    seen.tokens = {"target": [["t"] * 10] * 2, "source": [["s"] * 12] * 2}
    seen.save(tmp_path / "run.hw")
    return tmp_path / "run.hw"


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises((FileError, RecordError)) as error:
        headwise.load(path, **options)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_what_is_no_file_of_records_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "nowhere.hw")
    assert "Received: a folder" in refusal(tmp_path)
    for content in (b"", b"{}", b"some words that somebody wrote down", b"PK\3\4" + bytes(100), bytes(1000)):
        (tmp_path / "other").write_bytes(content)
        assert "is not a file of records" in refusal(tmp_path / "other")
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    assert "holds tensors, but no records" in refusal(tmp_path / "model.safetensors")


def test_a_file_of_a_newer_version_says_to_upgrade(saved: Path) -> None:
    header, data = header_of(saved)
    header["__metadata__"]["headwise"] = "5"
    forge(saved, header, data)
    message = refusal(saved)
    assert "newer headwise" in message
    assert "pip install -U headwise" in message


def test_a_file_that_is_cut_short_is_refused_wherever_it_is_cut(saved: Path) -> None:
    data = saved.read_bytes()
    for length in (0, 4, 8, 9, 100, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:length])
        message = refusal(saved)
        assert ("cut short" in message) == (length > 8)
    saved.write_bytes(data + b"x")
    assert "damaged" in refusal(saved)


def test_a_description_changed_by_hand_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    for old, new in ((b"a note", b"A note"), (b'"F32","shape":[2,4', b'"F32","shape":[4,2'), (b"layer.0", b"layer.7")):
        assert old in data
        saved.write_bytes(data.replace(old, new, 1))
        assert "checksum" in refusal(saved)


def test_changed_bytes_are_noticed_where_the_file_is_verified(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    header, _ = header_of(saved)
    start = 8 + int.from_bytes(data[:8], "little")
    for name in header.keys() - {"__metadata__", "tokens"}:
        changed = data.copy()
        changed[start + header[name]["data_offsets"][0]] ^= 1
        saved.write_bytes(changed)
        assert f"the bytes of {name} are not those" in refusal(saved, verify=True)
        if name.startswith("records."):
            headwise.load(saved)
    data[start + header["tokens"]["data_offsets"][0] + 5] ^= 1
    saved.write_bytes(data)
    assert "the bytes of tokens are not those" in refusal(saved)  # they are read anyway


def test_a_flipped_byte_of_the_header_never_does_harm(saved: Path) -> None:
    draw = random.Random(0)
    data = saved.read_bytes()
    kept = headwise.load(saved)
    other = saved.with_name("other.hw")
    harmless = 0
    for _ in range(400):
        changed = bytearray(data)
        changed[draw.randrange(8 + int.from_bytes(data[:8], "little"))] ^= draw.randrange(1, 256)
        other.write_bytes(changed)
        try:
            loaded = headwise.load(other)
        except HeadwiseError:
            continue
        harmless += 1
        for a, b in zip(kept, loaded, strict=True):
            assert_same(a, b)
        assert (loaded.coverage(), loaded.tokens) == (kept.coverage(), kept.tokens)
    assert harmless < 40  # spaces at the end


# What a file may say though its checksum is right: where in the header, and what there.
FORGED: dict[str, tuple[list[Any], Any]] = {
    "no records": (["records"], None),
    "a record that is none": (["records", 0], "q"),
    "a record without q": (["records", 0, "q"], None),
    "a tensor that is not there": (["records", 0, "q"], "records.9.q"),
    "keys for queries": (["records", 0, "q"], "records.0.k"),
    "values of other keys": (["records", 0, "v"], "records.0.grad"),
    "gradients of other queries": (["records", 0, "grad"], "records.0.v"),
    "a projection of rank 4": (["records", 0, "output_weight"], "records.0.v"),
    "a bias of other lengths": (["records", 0, "bias"], "records.0.q"),
    "a bias of bytes": (["records", 0, "bias"], "tokens"),
    "sinks of another size": (["records", 0, "sinks"], "records.0.bias"),
    "a scale past counting": (["records", 0, "scale"], 10**400),
    "a softcap below 0": (["records", 0, "softcap"], -1.0),
    "dropout of everything": (["records", 0, "dropout"], 1.0),
    "a site of the coverage with less": (["coverage", "sites", 0], ["layer.0", "seen", 1]),
    "a mask that is not there": (["records", 0, "mask"], 2),
    "a mask from the end": (["records", 0, "mask"], -1),
    "a kind of mask that there is not": (["masks", 0], {"kind": "pickle", "data": "gASVJwAAAAAAAACMBXBvc2l4lIwG"}),
    "a mask of more examples": (["masks", 0], {"kind": "padding_keys", "real": "five"}),
    "a site of the coverage that is none": (["coverage", "sites", 0], ["layer.0", "perhaps", 1, "sdpa"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_what_does_not_fit_together_is_refused(saved: Path, case: str) -> None:
    header, data = header_of(saved)
    header["five"] = {"dtype": "BOOL", "shape": [5, 12], "data_offsets": [len(data), len(data) + 60]}
    path, value = FORGED[case]
    place = header["__metadata__"]["description"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    forge(saved, header, data + bytes(60))
    assert "does not fit together" in refusal(saved)


def change_entry(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["records.0.q"].update(values)


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "a dtype that there is not": change_entry(dtype="F31"),
    "a size below 0": change_entry(shape=[-2, -4, 10, 8]),
    "a size that is True": change_entry(shape=[True, 8, 10, 8]),
    "a size past counting": change_entry(shape=[0, 10**300]),
    "a shape of another size": change_entry(shape=[2, 4, 10, 9]),
    "offsets past the end": change_entry(data_offsets=[10**9, 10**9 + 2560]),
    "offsets below 0": change_entry(data_offsets=[-2560, 0]),
    "offsets that run backwards": change_entry(data_offsets=[2560, 0]),
    "offsets of half a byte": change_entry(data_offsets=[0.5, 2560.5]),
    "offsets of another tensor": lambda header: header.update({"records.0.q": header["records.1.q"]}),
    "an entry that is none": lambda header: header.update({"records.0.q": []}),
    "an entry with more": change_entry(more=1),
    "metadata that are none": lambda header: header["__metadata__"].update(headwise=1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_header_that_breaks_the_format_is_refused(saved: Path, case: str) -> None:
    header, data = header_of(saved)
    BROKEN[case](header)
    forge(saved, header, data)
    assert "damaged" in refusal(saved)


@pytest.mark.parametrize(
    "text",
    ['{"a":' * 100_000, '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": ' + "9" * 5000 + "}", '{"a"', "{}x", "{\xff"],
    ids=["deep", "NaN", "twice", "digits", "open", "more", "no UTF-8"],
)
def test_json_that_is_none_is_refused(saved: Path, text: str) -> None:
    content = text.encode("latin-1")
    saved.write_bytes(len(content).to_bytes(8, "little") + content)
    assert "damaged" in refusal(saved)
    header, data = header_of_text(text)
    saved.write_bytes(header + data)
    assert "damaged" in refusal(saved)


def header_of_text(description: str) -> tuple[bytes, bytes]:
    """A file without tensors whose description is this text, with the right checksum."""
    metadata = {"headwise": "1", "description": description, "crc32": "{}"}
    metadata["checksum"] = tensor_file._checksum({"__metadata__": metadata})
    text = json.dumps({"__metadata__": metadata}).encode()
    return len(text).to_bytes(8, "little"), text


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from nodes(each, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_description_says_the_error_is_one_of_headwise(saved: Path, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        header, data = header_of(saved)
        garble(header, draw)
        forge(saved.with_name("other.hw"), header, data)
        with contextlib.suppress(HeadwiseError):
            for each in headwise.load(saved.with_name("other.hw"), verify=True):
                each.weights()


def garble(header: dict[str, Any], draw: random.Random) -> None:
    """Put what does not belong there in one to three places of a description."""
    description = header["__metadata__"]["description"]
    names = [name for name in header if name != "__metadata__"]
    odd = [None, True, -1, 0, 3, 2**70, 1.5, "", "q", [], {}, [[]], *names]
    for _ in range(draw.randrange(1, 4)):
        path = draw.choice([path for path in nodes(description) if path])
        place = description
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = draw.choice(odd)
