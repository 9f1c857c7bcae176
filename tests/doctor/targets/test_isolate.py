"""Code that hangs, crashes or eats memory: in a process of its own it is a finding, and its line is known."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from headwise.doctor.finding import Finding
from headwise.doctor.result import Diagnosis
from headwise.doctor.targets import isolate
from headwise.doctor.targets.examine import examine
from headwise.doctor.targets.isolate import Isolation, Request
from headwise.doctor.targets.load import parse
from headwise.errors import DoctorError
from tests.doctor.specimens import CODE, line_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(isolate, "_GRACE", 1.0)
    return tmp_path


def isolated(name: str, *settings: str, timeout: float = 60.0, memory: float = 4e9) -> Diagnosis:
    with Isolation() as isolation:
        return isolation.diagnose(Request(f"odd.py:{name}", settings, timeout=timeout, memory=memory))


def only(diagnosis: Diagnosis, name: str) -> Finding:
    (finding,) = diagnosis.findings
    assert (finding.name, finding.severity) == (name, "bug")
    return finding


def test_it_finds_what_is_found_without() -> None:
    target = parse("odd.py:WrongScale", ["width=32"])
    alone, together = isolated("WrongScale", "width=32"), examine(target)
    assert [x.name for x in alone.bugs] == [x.name for x in together.bugs] == ["wrong-scale"]
    assert (alone.subject, alone.understood, alone.where) == (together.subject, together.understood, together.where)
    with pytest.raises(DoctorError, match=r"odd\.py has no such class. Received: Healty. Did you mean Healthy\?"):
        isolated("Healty")


def test_a_module_that_hangs() -> None:
    """It refuses to be interrupted, and is ended."""
    finding = only(isolated("Deaf", timeout=1.0), "hangs")
    assert "did not finish within" in finding.evidence
    assert finding.where.file.endswith("odd.py")
    assert abs(finding.where.line - line_of("time.sleep(0.1)")) <= 2  # a loop has several lines


def test_a_module_that_crashes() -> None:
    finding = only(isolated("Falls"), "crashes")
    assert finding.evidence == "forward did not return: it ended the process with SIGSEGV"
    assert finding.where.line == line_of("ctypes.string_at(0)")


def test_a_module_that_eats_memory() -> None:
    finding = only(isolated("Eats", memory=1e9), "too-large")
    assert "took more than 1.0 GB of memory" in finding.evidence
    assert finding.where.line == line_of("kept.append(torch.ones(5_000_000))")


def test_what_it_starts_is_ended_with_it(folder: Path) -> None:
    sessions = (False, True) if sys.platform == "linux" else (False,)  # elsewhere only its process group is known
    (folder / "odd.py").write_text(
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        f"children = [subprocess.Popen(command, start_new_session=own) for own in {sessions}]\n"
        "open('pids', 'w').write(' '.join(str(child.pid) for child in children))\n"
        "os._exit(1)\n",
        encoding="utf-8",
    )
    assert only(isolated("A"), "crashes").evidence.startswith("the import of odd.py did not return")
    stats = [Path("/proc") / pid / "stat" for pid in (folder / "pids").read_text(encoding="utf-8").split()]
    assert len(stats) == len(sessions)
    deadline = time.monotonic() + 30  # a signal is delivered when the system comes to it
    while any(map(_runs, stats)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, stats))


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text(encoding="utf-8").split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_result_that_the_doctor_did_not_write(folder: Path) -> None:
    """The code can write where the doctor does; what it writes is not taken for a diagnosis."""
    (folder / "odd.py").write_text(
        "import json, os, pathlib, sys\n"
        "folder = pathlib.Path(os.readlink('/proc/self/fd/1')).parent\n"
        f"(folder / 'result.json').write_text({json.dumps(json.dumps({'diagnosis': {'subject': 'fine'}}))})\n"
        "os._exit(0)\n",
        encoding="utf-8",
    )
    assert "it overwrote the doctor's result" in only(isolated("A"), "crashes").evidence


def test_a_forward_that_hangs_is_interrupted_without_isolation_too() -> None:
    finding = only(examine(parse("odd.py:Loops"), timeout=0.5), "hangs")
    assert abs(finding.where.line - line_of("x = x + 1")) <= 2


def test_a_forward_that_leaves_is_a_finding_without_isolation_too() -> None:
    finding = only(examine(parse("odd.py:Exits")), "crashes")
    assert finding.evidence == "forward did not return: sys.exit(4)"
    assert finding.where.line == line_of("raise SystemExit(4)")
