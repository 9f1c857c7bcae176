"""Which library is loaded, which instruction set it uses, and that bad arguments are errors and no crash."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise import attention, plan
from headwise.errors import ArgumentError, KernelRefused
from headwise.kernels import native
from headwise.native import attend, build, library

ROOT = Path(__file__).resolve().parents[2]


def said(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "", **environment},
    )
    return done.stdout + done.stderr


def test_the_environment_chooses_the_instruction_set() -> None:
    script = "from headwise.native.library import instruction_set; print(instruction_set())"
    assert said(script, HEADWISE_NATIVE="portable") == "portable\n"
    assert said(script, HEADWISE_NATIVE="off") == "None\n"
    assert "HEADWISE_NATIVE: expected one of portable, " in said(script, HEADWISE_NATIVE="mmx")


def test_the_plan_knows_each_instruction_set() -> None:
    names = {name for sets in build.INSTRUCTION_SETS.values() for name in sets}
    assert set(native.SHARES) == names


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    library._found.cache_clear()
    yield
    library._found.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_without_the_library_the_kernel_refuses_and_others_serve() -> None:
    q = torch.randn(1, 1, 4, 8)
    assert library.instruction_set() is None
    assert library.instruction_sets() == []
    assert "refuses: they were not compiled; with a C++17 compiler, such as g++, run: python " in str(plan(q, q, q))
    assert attention(q, q, q).shape == q.shape
    with pytest.raises(KernelRefused, match="not compiled"):
        attention(q, q, q, kernel="native")
    with pytest.raises(ArgumentError, match="'avx2' cannot be used, the native kernels are off: they were not"):
        library.use("avx2")


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize(("made", "says"), [("nothing", "file too short"), ("int other;", "undefined symbol: hw_isa_")])
def test_a_library_that_cannot_be_loaded_says_why(tmp_path: Path, made: str, says: str) -> None:
    path = tmp_path / build.NAME
    if made == "nothing":
        path.touch()
    else:  # of other sources
        subprocess.run([*build.compiler(), "-shared", "-x", "c++", "-", "-o", path], input=made, text=True, check=True)
    q = torch.randn(1, 1, 4, 8)
    why = library.missing()
    assert why.startswith("they cannot be loaded; ")
    assert says in why
    assert f"refuses: {why}" in str(plan(q, q, q))
    assert attention(q, q, q).shape == q.shape


@pytest.mark.usefixtures("no_library")
def test_a_library_of_another_header_is_not_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its structures may be others: it would read a call wrong, in silence."""
    (tmp_path / build.NAME).symlink_to(build.FOLDER / build.NAME)
    assert library.missing() is None
    library._found.cache_clear()
    monkeypatch.setattr(library, "interface", lambda: build.interface() + 1)
    assert str(library.missing()).endswith("compiled from another headwise.h")


def test_a_compiler_that_fails_is_an_error_with_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c exit(3)")
    with pytest.raises(build.BuildError, match=r"exit\(3\).* failed"):
        build.build(tmp_path / "library.so")
    monkeypatch.setenv("CXX", "nowhere-c++")
    with pytest.raises(build.BuildError, match="nowhere-c\\+\\+: No such file"):
        build.build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


# The places of some fields of hw_attention, each of 8 bytes.
FIELDS = {name: i for i, name in enumerate(["size", "dtype", "cache_dtype", "threads", *"BHGQKDE"])}
FIELDS |= {name: len(FIELDS) + 5 * i for i, name in enumerate(["q", "k", "v", "out"])}
FIELDS |= {"scale": FIELDS["out"] + 5}


def call(**changed: int) -> bytearray:
    """A call of 1 × 2 × 5 × 4 numbers as the library takes it, with some fields changed."""
    kept = [torch.ones(1, 2, 5, 4) for _ in range(4)]
    tensors = [number for x in kept for number in (x.data_ptr(), *x.stride())]
    given = bytearray(attend._LAYOUT.size)
    struct.pack_into("=11q", given, 0, attend._LAYOUT.size, 0, 0, 2, 1, 2, 2, 5, 5, 4, 4)
    struct.pack_into("=" + 4 * "Q4q", given, 8 * FIELDS["q"], *tensors)
    struct.pack_into("=d", given, 8 * FIELDS["scale"], 0.5)
    for name, value in changed.items():
        field, stride = (name, None) if name in FIELDS else name.split("_")
        struct.pack_into("=q", given, 8 * (FIELDS[field] + (1 + int(stride) if stride else 0)), value)
    call.kept = kept  # type: ignore[attr-defined]
    return given


def answer(given: bytearray, function: str = "hw_attention_forward") -> str:
    loaded = library.library()
    found: str = loaded.hw_error(getattr(loaded, function)(bytes(given))).decode()
    return found


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "no error"),
        ({"size": 8}, "of different versions"),
        ({"dtype": 3}, "dtype is not known"),
        ({"cache_dtype": 1}, "of another dtype than queries"),
        ({"cache_dtype": 3}, "a pointer is missing"),
        ({"cache_dtype": 3, "G": 1, "Q": 9}, "of another dtype than queries"),
        ({"threads": 0}, "a size is below 1"),
        ({"Q": -1}, "a size is below 1, or too large"),
        ({"K": 2**40}, "too large"),
        ({"G": 3}, "H is not a multiple of G"),
        ({"k": 0}, "a pointer is missing"),
        ({"q": 4097}, "not aligned"),
        ({"v_2": 2**50}, "a stride is too large"),
        ({"out_2": 0}, "overlaps itself"),
        ({"out_1": 3}, "overlaps itself"),
    ],
    ids=str,
)
def test_bad_arguments(changed: dict[str, int], says: str) -> None:
    assert says in answer(call(**changed))


def test_writing_over_what_is_read() -> None:
    given = call()
    given[8 * FIELDS["out"] : 8 * FIELDS["out"] + 8] = given[8 * FIELDS["q"] : 8 * FIELDS["q"] + 8]
    assert "overlaps itself or what is read" in answer(given)


def test_gradients_need_what_the_forward_pass_wrote() -> None:
    assert answer(call(), "hw_attention_backward") == "a pointer is missing"


def test_blocks_that_do_not_exist() -> None:
    """A mask of runs of blocks whose places, numbers, order, words or tiles are wrong. There is one block of keys."""
    import numpy as np

    def with_runs(runs: Any, tiles: Any = (0, 1), words: int = 64, first: int = 0) -> str:
        given = call()
        arrays = [np.array(x, np.int64) for x in ([first], tiles, runs)] + [np.zeros(words, np.uint64)]
        at = struct.calcsize("=" + attend._INPUTS)
        struct.pack_into("=3q", given, at, 2, 0, 0)
        pointers = [x.ctypes.data for x in arrays]
        counts = len(tiles) - 1, len(runs) - 1, words
        struct.pack_into("=Qqq3Q3q", given, at + 24, pointers[0], 0, 0, *pointers[1:], *counts)
        return answer(given)

    end = [1, 0, 0]
    assert with_runs([[0, 0, 0], end]) == "no error"
    for wrong in (
        {"runs": [[0, 1, -1], end]},
        {"runs": [[0, -1, -1], end]},
        {"runs": [[0, 0, 1], end]},
        {"runs": [[0, 0, -2], end]},
        {"runs": [[0, 0, -1], [2, 0, 0]]},  # more blocks than there are
        {"runs": [[0, 0, -1], [0, 0, 0]]},  # a run of no blocks
        {"runs": [[-1, 0, -1], [0, 0, 0]]},
        {"runs": [[0, 0, -1], [1, 0, -1], [2, 0, 0]], "tiles": (0, 2)},
        {"runs": [[0, 0, -1], end], "tiles": (0, 2)},
        {"runs": [[0, 0, -1], end], "tiles": (1, 0)},
        {"runs": [[0, 0, -1], end], "first": 1},
        {"runs": [[0, 0, -1], end], "first": -1},
    ):
        assert "tiles or runs of blocks that do not exist" in with_runs(**wrong), wrong


def test_random_arguments_never_crash() -> None:
    """1,000 calls with other sizes and strides, some impossible: an answer or an error, and the process lives."""
    draw, errors = random.Random(0), set()
    sizes, strides = [-(2**62), -7, 0, 1, 2, 4, 5, 2**31, 2**62], [-(2**62), -20, -1, 0, 1, 3, 20, 2**41, 2**62]
    inside = torch.zeros(4, 4096)  # all that sizes up to 5 and strides up to 20 reach, from the middle of a row
    for _ in range(1000):
        changed = {name: inside[i, 2048:].data_ptr() for i, name in enumerate(("q", "k", "v", "out"))}
        changed |= {name: draw.choice(sizes) for name in draw.sample("BHGQKDE", draw.randint(0, 2))}
        changed |= {f"{x}_{i}": draw.choice(strides) for x in ("q", "k", "v", "out") for i in draw.sample(range(4), 1)}
        errors.add(answer(call(**changed)))
    assert errors > {"no error", "a stride is too large", "what is written overlaps itself or what is read"}
