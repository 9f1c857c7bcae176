"""Instruction sets called from C++, without torch: this machine's, by other compilers, and ARM's, emulated."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from headwise.native import build
from headwise.native.library import instruction_sets
from tests.conftest import missing

DRIVER = Path(__file__).with_name("driver.cpp")


def compiled(
    compiler: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *only: str, extra: tuple[str, ...] = ()
) -> Path:
    """The driver, with a library of its own by this compiler."""
    if shutil.which(compiler) is None:
        missing(f"no {compiler} here: scripts/install says how to get one")
    monkeypatch.setenv("CXX", compiler)
    library, driver = build.build(folder / "library.so", only=only, extra=extra), folder / "driver"
    command = [compiler, "-std=c++17", "-O2", "-pthread", "-Wall", "-Wextra", DRIVER, library, f"-Wl,-rpath,{folder}"]
    subprocess.run([*command, "-o", driver], check=True)
    return driver


def said(driver: Path, emulator: str = "", *arguments: str) -> list[str]:
    """A line for each instruction set. Fails if a number is wrong."""
    done = subprocess.run([*shlex.split(emulator), driver, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_by_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler of macOS, whose vectors are written otherwise."""
    here = [name for name in ("portable", "avx2") if name in instruction_sets()]
    lines = said(compiled("clang++", tmp_path, monkeypatch, *here))
    assert [line.split(": ")[0] for line in lines] == here
    assert lines[-1] == f"{here[-1]}: done, chosen by itself"


@pytest.mark.slow
def test_aarch64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor takes bf16 if it has it, else dot products of bytes, else NEON, and computes the right numbers."""
    if shutil.which("qemu-aarch64") is None:
        missing("no qemu-aarch64 here: scripts/install says how to get one")
    quickly = ("-O1",)  # the compiler takes a third of the time
    driver = compiled("aarch64-linux-gnu-g++", tmp_path, monkeypatch, extra=quickly)
    sets, absent = ("portable", "dotprod", "bf16"), "not on this machine"
    for at, processor in enumerate(("cortex-a72", "neoverse-n1", "max")):
        lines = said(driver, f"qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu {processor}", "best")
        answers = ["here"] * at + ["done, chosen by itself"] + [absent] * (2 - at)
        assert lines == [f"{name}: {answer}" for name, answer in zip(sets, answers, strict=True)], processor
