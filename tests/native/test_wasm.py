"""The encoder for pages, encoder.wasm, is the one that its sources give."""

from __future__ import annotations

import hashlib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from headwise.native.build import BuildError
from tests.conftest import missing

ROOT = Path(__file__).parents[2]
loader = SourceFileLoader("wasm", str(ROOT / "scripts" / "wasm.py"))
build = module_from_spec(spec_from_loader("wasm", loader))
loader.exec_module(build)


def test_is_current() -> None:
    of_sources, of_wasm, _ = build.SUMS.read_text("utf-8").splitlines()
    assert of_sources == f"{build.checksum()}  sources", "run: python scripts/wasm.py"
    assert of_wasm == f"{hashlib.sha256(build.WASM.read_bytes()).hexdigest()}  encoder.wasm"
    names = {path.name for path in build.sources()}
    assert names > {"wasm.py", "page.cpp", "headwise.h", "encoder.hpp", "product.hpp"}


@pytest.mark.slow
def test_is_what_the_compiler_makes(tmp_path: Path) -> None:
    if packages := build.missing():
        missing(f"no {', '.join(packages)} here: scripts/install says how to get them")
    if (theirs := build.SUMS.read_text("utf-8").splitlines()[2]) != (ours := build.version()):
        pytest.skip(f"encoder.wasm was made by {theirs}; here is {ours}")
    assert build.build(tmp_path / "encoder.wasm").read_bytes() == build.WASM.read_bytes()


def test_names_the_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"^compilers are missing. On Debian: sudo apt-get install clang$"):
        build.build(tmp_path / "encoder.wasm")
