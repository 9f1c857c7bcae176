"""The speeds that plans reckon with: those of the file for this very machine, or nominal ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, FileError
from headwise.kernels import native, speeds
from headwise.kernels.speeds import Machine


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of this test, which does not exist."""
    monkeypatch.setattr(native, "instruction_set", lambda: "avx512")
    monkeypatch.setattr(native.attend, "refuse", lambda call: None)
    path = tmp_path / "headwise" / "speeds.json"
    monkeypatch.setenv(speeds.VARIABLE, str(path))
    speeds.forget()
    yield path
    speeds.forget()


def machine(**shares: float) -> Machine:
    """A TFLOP/s; memory and calls that take no time."""
    return Machine.measured(1e12, 1e30, 1e-30, {"reference": 0.1, **shares})


def plan(mask: masks.Mask | None = None, **how: object) -> headwise.kernels.Plan:  # type: ignore[name-defined]
    q = torch.empty(1, 4, 2048, 64)
    return headwise.plan(q, q, q, mask=mask, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shares", "dense", "windowed"),
    [
        ({"native": 0.9, "sdpa": 0.5, "tiled": 0.5}, "native", "native"),
        ({"native": 0.4, "sdpa": 0.5, "tiled": 0.5}, "sdpa", "tiled"),
        ({"native": 0.4, "sdpa": 0.5, "tiled": 0.001}, "sdpa", "native"),
        ({"native": 0.001, "sdpa": 0.9, "tiled": 0.002}, "sdpa", "sdpa"),
        ({"native": 0.001, "sdpa": 0.2, "tiled": 0.002, "reference": 0.5}, "sdpa", "reference"),
    ],
    ids=str,
)
def test_what_was_measured_decides(shares: dict[str, float], dense: str, windowed: str) -> None:
    speeds.store({"float32": machine(**shares)})
    assert plan().kernel == dense
    assert plan(masks.window(255, 0)).kernel == windowed


def test_training_and_dtypes_are_measured_by_themselves() -> None:
    speeds.store({"float32, training": machine(native=0.1, sdpa=0.5, tiled=0.1)})
    assert plan().kernel == "native"
    q = torch.empty(1, 4, 2048, 64, requires_grad=True)
    assert headwise.plan(q, q, q).kernel == "sdpa"
    half = torch.empty(1, 4, 2048, 64, dtype=torch.bfloat16, requires_grad=True)
    assert not headwise.plan(half, half, half).machine.is_measured


def test_the_products_of_a_decoding_step_are_as_quick_as_nominally() -> None:
    q, k = torch.empty(1, 8, 1, 64), torch.empty(1, 2, 4096, 64)
    step = headwise.plan(q, k, k, kernel="native")
    with speeds.using({"float32": Machine.measured(9e12, step.machine.bytes, step.machine.call, {"native": 0.9})}):
        measured = headwise.plan(q, k, k, kernel="native")
    assert measured.machine.is_measured
    assert measured.cost.time == pytest.approx(step.cost.time)


def test_the_plan_says_which_share_of_the_matrix_product() -> None:
    assert plan().share == pytest.approx(0.75, abs=0.01)
    assert "about 75% of a matrix product (nominal; `headwise bench --calibrate` measures it)" in str(plan())
    speeds.store({"float32": machine(native=0.84, sdpa=0.1)})
    assert plan().share == pytest.approx(0.84)
    assert "  speed         about 84% of this machine's matrix product (840 GFLOP/s of 1 TFLOP/s)\n" in str(plan())


def test_the_file_is_read_once_and_not_on_import(file: Path) -> None:
    assert speeds._read.cache_info().misses == 0
    plan()
    plan(masks.causal())
    assert speeds._read.cache_info().misses == 1


@pytest.mark.parametrize("change", ["threads: 1", "torch 1.0", "another processor"])
def test_speeds_of_another_machine_are_ignored(file: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds.store({"float32": machine(native=0.1, sdpa=0.5)})
    assert plan().kernel == "sdpa"
    here = speeds.key()
    monkeypatch.setattr(speeds, "key", lambda: here + change)
    speeds.forget()
    assert not plan().machine.is_measured
    speeds.store({"float32": machine(native=0.2)})
    assert len(json.loads(file.read_text())) == 2
    assert plan().machine.shares["native"] == 0.2


def test_the_key_names_what_the_speeds_depend_on(one_thread: None) -> None:
    key = speeds.key()
    for part in (speeds.processor(), "threads: 1,", f"torch {torch.__version__}"):
        assert part in key
    torch.set_num_threads(2)
    assert "threads: 2," in speeds.key()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"a": {"speeds": {"float32": {}}}}',
        '{"a": {"speeds": {"float32": {"product": -1, "bytes": 1, "call": 1, "shares": {}}}}}',
        '{"a": {"speeds": {"float32": {"product": NaN, "bytes": 1, "call": 1, "shares": {}}}}}',
        '{"a": {"speeds": {"float32": {"product": 1, "bytes": 1, "call": 1, "shares": {"native": "fast"}}}}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:70],
)
def test_a_broken_file_warns_once_and_the_nominal_speeds_count(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"speeds\.json cannot be read, so plans reckon with nominal speeds"):
        planned = plan()
    assert (planned.kernel, planned.machine.is_measured) == ("native", False)
    assert not plan(masks.causal()).machine.is_measured  # a second warning would be an error
    speeds.store({"float32": machine(native=0.5)})  # replaces it
    assert plan().machine.is_measured


def test_none_forgets_this_machine(file: Path) -> None:
    speeds.store({"float32": machine(native=0.5)})
    speeds.store(None)
    assert json.loads(file.read_text()) == {}
    assert not plan().machine.is_measured


def test_where_the_file_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(file.parent))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv(speeds.VARIABLE)
    assert speeds.file() == file.parent / "headwise" / "speeds.json"
    monkeypatch.setenv(speeds.VARIABLE, "off")
    assert speeds.file() is None
    with pytest.raises(ArgumentError, match="HEADWISE_SPEEDS is 'off'"):
        speeds.store({})


def test_a_file_that_cannot_be_written_is_named(file: Path) -> None:
    file.parent.write_text("no folder", encoding="utf-8")
    with pytest.raises(FileError, match=r"cannot write .*speeds\.json"):
        speeds.store({})
