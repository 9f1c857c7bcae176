"""Sequences that several processes share: each set of checks in worker.py runs once, in processes of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.parallel.worker import sets

HERE = Path(__file__).parent
RUNS = {"calls": 2, "modules": 3, "dtensors": 4, "records": 2, "gone": 3}  # set: processes
CHECKS = [(name, check) for name, checks in sets().items() for check in checks]


@functools.cache
def found(name: str) -> list[dict[str, str]]:
    """What each process that did not end before said of each check."""
    count = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "worker.py"), folder]
        given = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [*command, str(count), name],
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        written = sorted(Path(folder).glob("found-*.json"))
        assert len(written) == (count - 1 if name == "gone" else count), run.stdout
        return [json.loads(each.read_text(encoding="utf-8")) for each in written]


@pytest.mark.xdist_group("parallel")
@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_processes_that_share_a_sequence(name: str, check: str) -> None:
    for of_process in found(name):
        assert not of_process[check], of_process[check]
