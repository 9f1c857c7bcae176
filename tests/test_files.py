"""Files that are replaced: many writers at once, writers that were killed, and readers in between."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import headwise
from headwise import files
from headwise.errors import CheckpointError
from headwise.files import replacing
from headwise.records import Seen
from tests.viewer.conftest import placed, record


def write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text)


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "old")
    with replacing(tmp_path / "a.txt") as part:
        part.write_text("new")
        assert part.parent == tmp_path
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.fixture(params=["replacing", "seen.save", "headwise.view"])
def written(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Write a file in one of the ways of Python."""
    if request.param == "replacing":
        return lambda path: write(path, "new")
    seen = Seen([placed(record(length=6), "attention", 0)])
    return seen.save if request.param == "seen.save" else lambda path: headwise.view(seen, path)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, written: Callable[[Path], object]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").touch()  # empty: a page replaces no file of others
    for name, target in (("link", "real/a.txt"), ("second", "link"), ("dangling", "real/b.txt")):
        (tmp_path / name).symlink_to(target)
        written(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes()
    assert sorted(os.listdir(tmp_path / "real")) == ["a.txt", "b.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such devices here")
def test_a_device_is_not_replaced(tmp_path: Path, written: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "device")
    (tmp_path / "link").symlink_to("device")
    for name in ("device", "link"):
        with pytest.raises(OSError, match=r"xpected a file\. Received: a device"):
            written(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["device", "link"]
    assert (tmp_path / "device").is_fifo()


def test_after_an_error_the_old_file_stays_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "old")

    def fail() -> None:
        with replacing(tmp_path / "a.txt") as part:
            part.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_threads_that_write_one_path_at_once_do_not_disturb_one_another(tmp_path: Path) -> None:
    path, writers = tmp_path / "a.txt", 8
    ready = threading.Barrier(writers, timeout=60)

    def one(number: int) -> None:
        with replacing(path) as part:
            part.write_text(f"{number}" * 1000)
            ready.wait()  # all have begun; none has finished
            assert part.read_text() == f"{number}" * 1000

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(one, range(writers)))
    assert path.read_text() in {f"{number}" * 1000 for number in range(writers)}
    assert os.listdir(tmp_path) == ["a.txt"]


def test_threads_save_and_load_records_at_one_path(tmp_path: Path) -> None:
    """Every save succeeds, and every load sees one of the files that were saved, whole."""
    path, rounds = tmp_path / "run.hw", 15

    def seen(number: int) -> Seen:
        x = torch.full((1, 1, 4 + number, 8), float(number))
        kept = Seen([headwise.attention(x, x, x, record=True)[1]])
        kept.tokens = [[str(number)] * (4 + number)]
        return kept

    seen(0).save(path)
    ready = threading.Barrier(6, timeout=60)

    def save(number: int) -> None:
        kept = seen(number)
        ready.wait()
        for _ in range(rounds):
            kept.save(path)

    def load(_: int) -> None:
        ready.wait()
        for _ in range(rounds):
            found = headwise.load(path, verify=True)
            number = int(found[0].q[0, 0, 0, 0])
            assert torch.equal(found[0].q, seen(number)[0].q)
            assert found.row_labels(found[0]) == (str(number),) * (4 + number)

    tasks: list[tuple[Callable[[int], None], int]] = [(save, 1), (save, 2), (save, 3), (save, 4), (load, 0), (load, 0)]
    with ThreadPoolExecutor(len(tasks)) as pool:
        for done in [pool.submit(task, number) for task, number in tasks]:
            done.result()
    assert os.listdir(tmp_path) == ["run.hw"]


def part_of(path: Path, process: int, machine: str | None = None) -> Path:
    with replacing(path) as part:
        part.write_text("")
    mine = part.name.rpartition(f"-{os.getpid()}-")[0]
    name = f"{mine}-{process}-7.part"
    return path.with_name(name if machine is None else name.replace(mine.rpartition(".")[2], machine))


@pytest.mark.skipif(os.name == "nt", reason="on Windows a process cannot be asked whether it runs")
def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive, own = part_of(path, int(done.stdout)), part_of(path, os.getppid()), part_of(path, os.getpid())
    elsewhere, other = part_of(path, int(done.stdout), "00000000"), part_of(tmp_path / "b.txt", int(done.stdout))
    for part in (dead, alive, own, elsewhere, other):
        part.write_text("half")
    write(path, "whole")
    assert not dead.exists()
    assert not own.exists()  # from an earlier process of this number: a container that was restarted
    assert alive.exists()
    assert elsewhere.exists()  # on another machine that writes to the same folder
    assert other.exists()


def test_a_part_that_this_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as first:
        first.write_text("first")
        write(tmp_path / "a.txt", "second")
        assert first.exists()
    assert (tmp_path / "a.txt").read_text() == "first"


def test_a_reader_that_holds_the_file_on_windows_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, replace = [], os.replace

    def refuse_twice(part: Path, path: Path) -> None:
        attempts.append(path)
        if len(attempts) < 3:
            raise PermissionError(13, "Permission denied")
        replace(part, path)

    monkeypatch.setattr(os, "replace", refuse_twice)
    with pytest.raises(PermissionError):
        write(tmp_path / "a.txt", "elsewhere it is an error at once")
    attempts.clear()
    monkeypatch.setattr(files, "_PAUSES", (0.0, 0.0))
    write(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"
    attempts.clear()
    monkeypatch.setattr(files, "_PAUSES", (0.0,))
    with pytest.raises(PermissionError):
        write(tmp_path / "a.txt", "held for too long")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_gets_its_new_files_and_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    for text in ("one", "two"):
        with files.adding(tmp_path) as part:
            (part / "sub").mkdir()
            for name in ("a.txt", "sub/b.txt"):
                (part / name).write_text(text)
            files.seal(part / "sub")
            files.seal(part)
        files.check_seal(tmp_path)
        assert list(files.read_seal(tmp_path)) == ["a.txt"]
        files.check_seal(tmp_path / "sub")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "checksums.json", "mine.txt", "sub"]
    (tmp_path / "a.txt").write_text("twp")
    files.check_seal(tmp_path, "b.txt")
    with pytest.raises(CheckpointError, match=r"a\.txt is damaged, or was changed .* Received: checksum="):
        files.check_seal(tmp_path)
