"""Compiles the native kernels: `python headwise/native/build.py [instruction sets] [flags]`. Imports no other package.

Installing headwise runs it where a C++17 compiler is found (`hatch_build.py`). Each instruction set is one object file
of the same source; the library chooses among them when it is loaded.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAME = "headwise_native.so"

# -ffp-contract=fast: a * b + c is one instruction. -fno-trapping-math: comparisons need not keep NaN's exceptions.
FLAGS = shlex.split(
    "-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=fast "
    "-fno-exceptions -fno-rtti -Wall -Wextra -Wno-unknown-warning-option -Wno-maybe-uninitialized"
)
MACOS = "11.0"  # the oldest version on which the library runs
WIDE = ["-mprefer-vector-width=512"]
INSTRUCTION_SETS: dict[str, dict[str, list[str]]] = {  # of a processor: name -> flags, from the plainest
    "x86_64": {
        "portable": [],
        "avx2": ["-mavx2", "-mfma", "-mf16c", "-mtune=haswell"],
        "avxvnni": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni", "-mtune=haswell"],  # products of int8
        "avx512": ["-march=skylake-avx512", *WIDE],
        "avx512vnni": ["-march=cascadelake", *WIDE],
        "avx512bf16": ["-march=cooperlake", *WIDE],
        "amx": ["-march=sapphirerapids", *WIDE],
    },
    "aarch64": {
        "portable": [],
        "dotprod": ["-march=armv8.2-a+dotprod"],  # products of int8
        "bf16": ["-march=armv8.2-a+dotprod+bf16"],
    },
}
INSTRUCTION_SETS["arm64"] = INSTRUCTION_SETS["aarch64"]  # the name on macOS


def is_current(path: Path = FOLDER / NAME) -> bool:
    """Whether the library exists and is newer than its sources."""
    sources = [Path(__file__), FOLDER / "headwise.h", *(FOLDER / "src").iterdir()]
    return path.exists() and path.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def interface() -> int:
    """Return a checksum of headwise.h, which the library also has: a library of another header would misread calls."""
    return zlib.crc32((FOLDER / "headwise.h").read_bytes())


class BuildError(RuntimeError):
    """There is no compiler, or it failed; the message has the output of the compiler."""


def compiler() -> list[str]:
    """Return the compiler's command, a list of words: from the environment variable CXX, or else c++, g++ or clang++.

    The first of these three that is installed is used. Raises BuildError if there is none.
    """
    architectures = shlex.split(os.environ.get("ARCHFLAGS", ""))  # on macOS: "-arch arm64"
    if asked := os.environ.get("CXX"):
        return shlex.split(asked) + architectures
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name, *architectures]
    raise BuildError("no C++ compiler was found (c++, g++, clang++, or the one that CXX names)")


def target() -> tuple[str, str]:
    """Return the (processor, system) for which the compiler compiles: ("x86_64", "linux-gnu"). Raises BuildError."""
    processor, _, system = _run([*compiler(), "-dumpmachine"]).strip().partition("-")
    return processor, system


def build(to: Path = FOLDER / NAME, *, only: Collection[str] = (), extra: tuple[str, ...] = ()) -> Path:
    """Compile the library, and replace an older one. Returns its path.

    Args:
        to: the file to write.
        only: the instruction sets to compile; () = all that the compiler knows for its processor.
        extra: further flags, such as -fsanitize=address.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    command = compiler()
    processor, system = target()
    on_macos = "darwin" in system
    # ELF: without the C++ library, which is not used, so that its version does not matter.
    extra = (*extra, f"-mmacosx-version-min={MACOS}") if on_macos else extra
    to_link = [] if on_macos else ["-Wl,--as-needed"]
    sets = INSTRUCTION_SETS.get(processor, {"portable": []})
    sets = {name: more for name, more in sets.items() if (name in only or not only) and _takes(command, more)}
    known = "-DINSTRUCTION_SETS=" + " ".join(f"X({name})" for name in sets)
    with tempfile.TemporaryDirectory() as made:
        dispatch = [known, f"-DINTERFACE={interface()}"]
        units = {"pool": [], "dispatch": dispatch} | {name: [f"-DISA={name}", *more] for name, more in sets.items()}

        def compiled(unit: str) -> Path:
            source = FOLDER / "src" / f"{unit if unit in ('pool', 'dispatch') else 'isa'}.cpp"
            target = Path(made) / f"{unit}.o"
            _run([*command, *FLAGS, *extra, *units[unit], "-c", str(source), "-o", str(target)])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [str(path) for path in pool.map(compiled, units)]
        part = to.with_name(f".{to.name}.{os.getpid()}")
        try:
            _run([*command, "-shared", *to_link, *extra, *objects, "-o", str(part), "-pthread"])
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)
    return to


def _takes(command: list[str], flags: list[str]) -> bool:
    """Whether a compiler accepts these flags; an older compiler may not."""
    try:
        _run([*command, *flags, "-fsyntax-only", "-x", "c++", os.devnull])
    except BuildError:
        return not flags  # the plainest set is always compiled, and its errors are shown
    return True


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as cause:
        raise BuildError(f"{command[0]}: {cause.strerror or cause}") from cause
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    try:
        flags = tuple(word for word in sys.argv[1:] if word.startswith("-"))
        print(build(only=[word for word in sys.argv[1:] if word not in flags], extra=flags))
    except BuildError as error:
        sys.exit(f"headwise/native/build.py: {error}")
