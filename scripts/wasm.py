"""Compiles the native encoder to WebAssembly, for pages that carry a model: `.venv/bin/python scripts/wasm.py`.

The result, headwise/native/wasm/encoder.wasm, is committed, because few machines have the compilers. encoder.sha256
beside it says what it was made from, and by which compiler.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

from headwise.native import build as native

FOLDER = Path(native.__file__).resolve().parent / "wasm"
WASM, SUMS = FOLDER / "encoder.wasm", FOLDER / "encoder.sha256"

COMPILER = ["clang++", "--target=wasm32-wasi", "-rtlib=compiler-rt"]
FLAGS = [
    *(flag for flag in native.FLAGS if flag not in ("-O3", "-fPIC")),
    *("-O2", "-msimd128", "-DISA=portable", "-Wno-bitwise-conditional-parentheses", "-nostartfiles", "-nostdlib++"),
    # An overflow of the stack, which is the first in memory, ends the program.
    "-Wl,--no-entry,--gc-sections,--strip-all,--stack-first,-z,stack-size=1048576",
]


def sources() -> list[Path]:
    """List the files that the encoder is made from: this one, page.cpp, and what that includes."""
    found, left = [Path(__file__).resolve()], [FOLDER / "page.cpp"]
    while left:
        path = left.pop()
        if path not in found:
            found.append(path)
            names = re.findall(r'^#include "(.+)"', path.read_text("utf-8"), re.MULTILINE)
            left += [(path.parent / name).resolve() for name in names]
    return sorted(found)


def checksum() -> str:
    """Return the SHA-256 of all sources."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()


def missing() -> list[str]:
    """List the Debian packages that are missing here."""
    if shutil.which(COMPILER[0]) is None:
        return ["clang"]
    library, of_compiler, headers = (
        native._run([*COMPILER, option]).strip()
        for option in ("-print-file-name=libc.a", "-print-libgcc-file-name", "-print-file-name=libc++.a")
    )
    here = {
        "lld": shutil.which("wasm-ld") is not None,
        "wasi-libc": Path(library).is_absolute(),
        "libclang-rt-dev-wasm32": Path(of_compiler).exists(),
        "libc++-dev-wasm32": Path(headers).is_absolute(),
    }
    return [package for package, is_here in here.items() if not is_here]


def version() -> str:
    """Return the compiler's name and version."""
    return native._run([COMPILER[0], "--version"]).splitlines()[0]


def build(to: Path) -> Path:
    """Compile the encoder. Raises BuildError without the compilers, or if one fails."""
    if packages := missing():
        raise native.BuildError(f"compilers are missing. On Debian: sudo apt-get install {' '.join(packages)}")
    native._run([*COMPILER, *FLAGS, str(FOLDER / "page.cpp"), "-o", str(to)])
    to.chmod(0o644)  # it is no program
    return to


if __name__ == "__main__":
    try:
        made = build(WASM).read_bytes()
    except native.BuildError as error:
        sys.exit(f"scripts/wasm.py: {error}")
    SUMS.write_text(f"{checksum()}  sources\n{hashlib.sha256(made).hexdigest()}  {WASM.name}\n{version()}\n", "utf-8")
    print(f"{WASM}: {len(made):,} bytes")
