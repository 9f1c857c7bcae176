"""scripts/affected: which tests a change can break."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "affected"
affected_by = runpy.run_path(str(SCRIPT))["affected_by"]


@pytest.mark.parametrize(
    ("changed", "stages", "runs", "left_out"),
    [
        ("headwise/masks/band.py", {"keras", "sanitizers"}, {"masks", "kernels", "viewer"}, set()),
        ("headwise/plot/colour.py", set(), {"plot"}, {"masks", "kernels", "doctor", "server"}),
        ("headwise/cli/stats.py", set(), {"cli"}, {"masks", "kernels", "plot"}),
        ("tests/keras/test_help.py", {"keras"}, {"keras"}, {"masks", "plot"}),
        ("tests/oracle.py", set(), {"native"}, {"masks", "plot"}),
        ("docs/watch.md", set(), {"language"}, {"masks", "kernels"}),
    ],
)
def test_a_change_runs_what_uses_it(changed: str, stages: set[str], runs: set[str], left_out: set[str]) -> None:
    found, tests = affected_by([changed])
    assert {name for name, affected in found.items() if affected} == stages
    folders = {Path(name).parts[1] for name, affected in tests.items() if affected}
    assert runs <= folders
    assert not left_out & folders
    assert "test_affected.py" in folders  # those directly in tests/ always run


def test_files_of_another_backend_are_left_to_their_stage() -> None:
    """A file that is named is collected, whatever its conftest says."""
    _, tests = affected_by(["headwise/masks/band.py"])
    assert not [name for name in tests if name.startswith(("tests/keras/tensorflow", "tests/keras/jax"))]


def test_a_revision_that_git_does_not_know_is_an_error() -> None:
    ran = subprocess.run([SCRIPT, "--base", "no-such-revision"], capture_output=True, text=True, check=False)
    assert ran.returncode
    assert "no-such-revision" in ran.stderr
