"""Folders of exports: what may be replaced, and that nothing is left of one that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.errors import ArgumentError, CheckpointError, FileError
from headwise.export import manifest
from headwise.export.comparing import Difference
from headwise.export.folder import replacing_folder
from headwise.export.manifest import GraphFile, Manifest
from headwise.graphs.graph import Value

SOME = Manifest(
    "onnx",
    "classify",
    "fp32",
    (
        GraphFile(
            "model",
            "model.onnx",
            (Value("input_ids", torch.int64, ("batch", "length")),),
            (Value("logits", torch.float32, ("batch", 3)),),
            (Difference("logits", 1e-6, 1e-7, 0.5, 1.0),),
            1e-4,
            23,
        ),
    ),
    ("A note.",),
    {"headwise": "1.0"},
    {"weights": False},
)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest.write(tmp_path, SOME)
    assert manifest.read(tmp_path) == SOME


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"graphs": [{"inputs": [{"name": "x", "dtype": "nn", "axes": []}]}]}']
)
def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"export\.json"):
        manifest.read(tmp_path)


def test_a_folder_without_manifest_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not an export"):
        manifest.read(tmp_path)


def test_an_export_takes_the_place_of_an_older_one_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "export"
    for name in ("first", "second"):
        with replacing_folder(out) as part:
            manifest.write(part, SOME)
            (part / name).touch()
    assert sorted(path.name for path in out.iterdir()) == ["export.json", "second"]
    assert [path.name for path in out.parent.iterdir()] == ["export"]


def test_what_fails_leaves_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "export"
    with replacing_folder(out) as part:
        manifest.write(part, SOME)
    with pytest.raises(FileError, match=r"cannot write .*half"), replacing_folder(out) as part:
        (part / "half" / "way").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["export", "export.json"]


def test_a_kill_between_the_two_renames_leaves_an_export_that_opens(tmp_path: Path) -> None:
    out = tmp_path / "export"
    killed = f"""
import os, signal
from pathlib import Path
from headwise import files
replace = os.replace
def kill(old, new):
    if str(new) == {str(out)!r}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new)
os.replace = kill
with files.replacing_folder(Path({str(out)!r})) as part:
    (part / "export.json").write_text("new")
"""
    with replacing_folder(out) as part:
        manifest.write(part, SOME)
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode < 0
    assert not out.exists()
    assert manifest.read(out) == SOME
    with replacing_folder(out) as part:
        manifest.write(part, SOME)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_nothing_but_an_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ArgumentError, match="is not empty and not an export"), replacing_folder(tmp_path):
        pass
    with pytest.raises(ArgumentError, match="is a file"), replacing_folder(tmp_path / "letter.txt"):
        pass
    (tmp_path / "export.json").write_text('{"of": "somebody else"}')
    with pytest.raises(ArgumentError, match="is not empty and not an export"), replacing_folder(tmp_path):
        pass
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_link_leads_to_the_export(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing_folder(tmp_path / "link") as part:
        manifest.write(part, SOME)
    assert (tmp_path / "link").is_symlink()
    assert manifest.read(tmp_path / "real") == SOME
    assert {path.name for path in tmp_path.iterdir()} == {"link", "real"}
