"""The blind sets of benchmarks/blind: each answer is of a file that is there, and a file is scored as it says.

A file lies there to be read or is packed, and packing loses none.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

BLIND = Path(__file__).parents[1] / "benchmarks" / "blind"
SETS = sorted(path.parent.name for path in BLIND.glob("*/answers.csv"))


@pytest.fixture(scope="module")
def blind() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blind", BLIND / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["blind"] = module  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def unpacked(blind: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    blind.unpack(folder)
    return folder


@pytest.mark.parametrize("name", SETS)
def test_the_answers_of_a_set(blind: ModuleType, unpacked: Path, name: str) -> None:
    cases = blind.cases(unpacked, [name], [])
    assert (len(cases), sum(case.broken for case in cases)) == ((40, 0) if name.startswith("healthy") else (50, 30))
    assert {case.path for case in cases} == set((unpacked / name).glob("*.py"))
    for case in cases:
        body = ast.parse(case.path.read_text(encoding="utf-8")).body
        assert case.kind in {x.name for x in body if isinstance(x, ast.ClassDef)}, case


def test_each_file_is_in_one_place(blind: ModuleType) -> None:
    with tarfile.open(BLIND / blind.ARCHIVE) as archive:
        members = archive.getmembers()
    packed, readable = [member.name for member in members], blind.files(BLIND)
    assert (len(SETS), len(packed), len(readable)) == (32, 1408, 152 + 32)
    assert not readable & set(packed)
    assert packed == sorted(set(packed))
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o644)}


def test_what_was_changed_is_packed(blind: ModuleType, tmp_path: Path) -> None:
    here, folder, again = (tmp_path / name for name in ("here", "folder", "again"))
    for name in ("one/01.py", "one/02.py", "one/03.py", "one/04.py", "one/answers.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name}\r\n".encode())
    blind.copy("one/01.py", folder, here)
    blind.copy("one/02.py", folder, here)
    blind.pack(folder, here)
    assert blind.files(here) == {"one/01.py", "one/02.py", "one/answers.csv"}

    for name in ("one/01.py", "one/03.py", "two/05.py", "two/answers.csv"):  # here, packed, new
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"changed")
    (folder / "one/02.py").unlink()  # here
    (folder / "one/04.py").unlink()  # packed
    blind.pack(folder, here)
    assert blind.files(here) == {"one/01.py", "one/answers.csv", "two/answers.csv"}
    blind.unpack(again, here)
    assert contents(blind, again) == contents(blind, folder)
    packed = (here / blind.ARCHIVE).read_bytes()
    blind.pack(again, here)
    assert (here / blind.ARCHIVE).read_bytes() == packed


def contents(blind: ModuleType, folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in blind.files(folder)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_broken_and_a_healthy_file() -> None:
    ran = subprocess.run(
        [sys.executable, BLIND, "usual_8", "--only", "08", "19"], capture_output=True, text=True, check=True
    )
    said = "1 of 1 named (100%), 1 with risks; 0 of 1 with a false bug"
    lines = ran.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"usual_8: {said}", f"all: {said}")
