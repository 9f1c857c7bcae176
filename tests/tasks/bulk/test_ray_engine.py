"""Workers of Ray give the same file, and go on with what was begun without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwise import tasks
from headwise.tasks.bulk.parts import Work
from headwise.tasks.bulk.streaming import predict_file


def test_two_workers_write_what_one_process_writes(
    tmp_path: Path, reviews_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: Ray starts others, and warns."""
    pytest.importorskip("ray.data", reason="ray is not installed: pip install headwise[ray]")
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

    command = [sys.executable, "-m", "headwise", "predict", str(reviews_run), "--file", "in.csv", "--out", "ray.csv"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(
        [*command, "--chunk", "4", "--engine", "ray", "--workers", "2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "Wrote ray.csv (30 rows).\n")
    assert done.stderr.splitlines()[-2:] == [  # Ray's C++ side may say something before
        "note: 6 rows without a prediction: no text (lines 2, 11, 20, 29, 38, 47)",
        "note: 8 of the rows were finished before",
    ]
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
