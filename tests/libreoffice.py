"""LibreOffice without a window: workbooks as they are once everything in them was computed anew."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import missing

# 0 = always: the results that a file holds are not believed, whoever wrote it.
SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse">
<value>0</value></prop></item>
</oor:items>
"""
Convert = Callable[[Sequence[Path]], list[Path]]


@pytest.fixture(scope="session")
def libreoffice(tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """`libreoffice(paths)`: the same, computed anew. Without LibreOffice the test is skipped, or fails in CI."""
    program = shutil.which("soffice") or shutil.which("libreoffice")
    if program is None:
        missing("no LibreOffice here: scripts/install says how to get it")
    # A profile of its own for each worker: two that share one do not start.
    profile = tmp_path_factory.mktemp("libreoffice")
    (profile / "user").mkdir()
    (profile / "user" / "registrymodifications.xcu").write_text(SETTINGS, encoding="utf-8")
    starts = 0

    def convert(paths: Sequence[Path]) -> list[Path]:
        nonlocal starts
        starts += 1
        out = profile / f"out{starts}"
        command = [program, f"-env:UserInstallation={profile.as_uri()}", "--headless", "--convert-to", "xlsx"]
        done = subprocess.run(
            [*command, "--outdir", str(out), *map(str, paths)], capture_output=True, text=True, timeout=300
        )
        found = [out / path.name for path in paths]
        assert all(path.exists() for path in found), done.stdout + done.stderr
        return found

    return convert
