"""Sequences that several processes share: each set of checks in worker.py runs once, in processes of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import make_once
from tests.parallel.worker import sets

HERE = Path(__file__).parent
RUNS = {"calls": 2, "modules": 3, "dtensors": 4, "records": 2, "gone": 3}  # set: processes
CHECKS = [(name, check) for name, checks in sets().items() for check in checks]


def run_checks(name: str, folder: Path) -> None:
    """Write what each process says of each check of a set."""
    count = RUNS[name]
    run = subprocess.run(
        [sys.executable, str(HERE / "worker.py"), str(folder), str(count), name],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    # (Of "gone" one process ended before.)
    assert len([*folder.glob("found-*.json")]) == (count - 1 if name == "gone" else count), run.stdout


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_processes_that_share_a_sequence(name: str, check: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_once(tmp_path_factory, f"parallel-{name}", functools.partial(run_checks, name))
    for written in folder.glob("found-*.json"):
        said = json.loads(written.read_text(encoding="utf-8"))[check]
        assert not said, said
