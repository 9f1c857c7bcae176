"""Workers of Ray give the same file, and go on with what was begun without them; whoever of them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwise import tasks
from headwise.profiles import load
from headwise.tasks.bulk.parts import Work, name_folder
from headwise.tasks.bulk.streaming import predict_file

from . import on_ray

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _ray() -> None:
    pytest.importorskip("ray.data", reason="ray is not installed: pip install headwise[ray]")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As of the workers: sums on more threads end in other digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Ray starts others, and warns."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def steps(folder: Path, *names: str) -> dict[str, str]:
    """The outcomes of these steps, with what the local engine writes beside them."""
    texts = [f"text {number}" for number in range(on_ray.ROWS)]
    texts[7] = on_ray.BOMB
    (folder / "in.csv").write_text("".join(f"{text}\n" for text in ["text", *texts]), encoding="utf-8")
    done = run(folder, str(ROOT / "tests/tasks/bulk/on_ray.py"), str(folder), *names)
    assert done.returncode == 0, done.stderr
    on_ray.rows(folder, "local.csv", "local")
    lines = (folder / "local.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["text,length", *(f"{text},{len(text)}" for text in texts)]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_rows_are_neither_lost_nor_doubled_when_a_worker_is_killed(tmp_path: Path) -> None:
    assert steps(tmp_path, "rows, a worker killed") == {"rows, a worker killed": "done"}
    assert (tmp_path / "row").exists()  # it was
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()


@pytest.mark.slow
def test_rows_that_end_every_worker_are_named(tmp_path: Path) -> None:
    said, of_loading = steps(tmp_path, "rows, a worker killed always", "rows, no worker loads").values()
    assert of_loading.startswith("Ray workers ended again and again while they loaded the model. ")
    assert said == (
        f"{tmp_path / 'in.csv'}: rows 7 to 9, from line 8 on: a Ray worker ended each of the 3 times that it computed "
        "them. Look at them for what needs too much memory. What is finished is kept: the same command resumes"
    )
    kept = sorted(path.stem for path in name_folder(tmp_path / "always.csv").glob("*.csv"))
    assert kept
    assert "000002" not in kept


@pytest.mark.slow
def test_texts_are_neither_lost_nor_doubled_when_a_worker_is_killed(tmp_path: Path) -> None:
    found = steps(tmp_path, "corpus, a worker killed", "corpus, the beginning", "corpus, a worker killed always")
    assert (tmp_path / "text").exists()
    assert (found["corpus, a worker killed"], found["corpus, the beginning"]) == ("done", "done")
    on_ray.corpus(tmp_path, "local.hw", "local", None)
    assert (tmp_path / "killed.hw").read_bytes() == (tmp_path / "local.hw").read_bytes()
    on_ray.corpus(tmp_path, "local.hw", "local", None, max_tokens=300)
    assert (tmp_path / "part.hw").read_bytes() == (tmp_path / "local.hw").read_bytes()
    assert 300 <= load(tmp_path / "part.hw").tokens < load(tmp_path / "killed.hw").tokens
    said = found["corpus, a worker killed always"]
    assert said.startswith("corpus: texts ")
    assert ", of which the first is 1: a Ray worker ended each of the 3 times that it computed them" in said


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(
    tmp_path: Path, reviews_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "in.csv").open("w", encoding="utf-8") as rows:
        rows.write("id,sentence\n")
        rows.writelines(f'{row},"a film\nof {row}"\n' if row % 5 else f"{row},\n" for row in range(30))
    task = tasks.load(reviews_run)
    predict_file(task, reviews_run, tmp_path / "in.csv", tmp_path / "local.csv", chunk=4)

    do = Work.do

    def stopping(work: Work, number: int, *given: object) -> None:
        if number == 2:
            raise KeyboardInterrupt
        do(work, number, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Work, "do", stopping)
    with pytest.raises(KeyboardInterrupt):
        predict_file(task, reviews_run, tmp_path / "in.csv", tmp_path / "ray.csv", chunk=4)

    command = ["-m", "headwise", "predict", str(reviews_run), "--file", "in.csv", "--out", "ray.csv"]
    done = run(tmp_path, *command, "--chunk", "4", "--engine", "ray", "--workers", "2")
    assert (done.returncode, done.stdout) == (0, "Wrote ray.csv (30 rows).\n")
    assert done.stderr.splitlines()[-2:] == [  # Ray's C++ side may say something before
        "note: 6 rows without a prediction: no text (lines 2, 11, 20, 29, 38, 47)",
        "note: 8 of the rows were finished before",
    ]
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
