"""What scripts/bench writes, and the tables that are made from it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import decode, encoder, encoder_peers, figures, native
from benchmarks.machines import __main__ as bench
from benchmarks.machines import page, quiet
from headwise.native.library import instruction_set

ABOUT = {"machine": "A(R) CPU, 2 threads", "instruction set": "avx2", "date": "2026-12-01"}
ABOUT |= {"torch": "2.13.0", "headwise": "0.3.0"}


def row(work: str, **given: Sequence[float]) -> dict[str, Any]:
    return {"table": "attention", "work": work, "figures": {name.replace("_", " "): x for name, x in given.items()}}


def test_the_tables_of_the_document_are_those_of_the_files() -> None:
    text, files = page.DOCUMENT.read_text(encoding="utf-8"), page.read(bench.MACHINES)
    assert files
    assert text == page.filled(text, files), "write them: scripts/bench --tables"
    assert {name for name in re.findall(r"<!-- machines: ([\w ]+) -->", text) if name != "end"} == {"all", *page.TABLES}


def test_a_table_has_a_column_for_each_file_with_a_figure_and_every_row_in_its_place() -> None:
    files = {
        "amx": {"about": ABOUT, "rows": [row("a", **{"× SDPA": [1.144, 1.11, 1.17]}), row("c", **{"× SDPA": [32.1]})]},
        "avx2": {"about": ABOUT, "rows": [row("a", of_the_product=[0.5]), row("b", **{"× SDPA": [2.0, 1.5, 2.0]})]},
        "portable": {"about": ABOUT, "rows": [row("a", ms=[3.0])]},
    }
    head, _, *rows = page.table(page.TABLES["attention"], files)
    assert head == "| call | `amx`<br>A, 2 threads<br>2026-12-01 | `avx2`<br>A, 2 threads<br>2026-12-01 |"
    assert rows == [
        "| a | 1.14 · – | – · 50% |",
        "| b | – | 2.00 (1.50–2.00) · – |",
        "| c | 32.1 · – | – |",
    ]


def test_wide_instruction_sets_come_first_and_forced_ones_last(tmp_path: Path) -> None:
    for name in ("portable", "avx2-on-amx", "avx2", "amx"):
        figures.write(tmp_path / f"{name}.json", ABOUT, [row("a", ms=[1.0])])
    assert list(page.read(tmp_path)) == ["amx", "avx2", "portable", "avx2-on-amx"]


def test_the_table_of_machines_says_what_is_to_be_known_of_a_file() -> None:
    about = {**ABOUT, "carried over": "from notes", "busy": True, "unfinished": ["encoder"], "missing": {"nncf": "no"}}
    about["held"] = ["ATEN_CPU_CAPABILITY"]
    *_, line = page.machines({"avx2-on-amx": {"about": {**about, "peers": {"openvino": "2026.4"}}, "rows": []}})
    assert (
        "from notes; held to this set by `HEADWISE_NATIVE`, `ATEN_CPU_CAPABILITY`; other peers are not; other" in line
    )
    assert "not finished: encoder; missing: nncf" in line
    assert "torch 2.13.0, headwise 0.3.0, openvino 2026.4" in line


def program(path: Path, after: str = "", limit: float = 60.0) -> bench.Step:
    """A benchmark that writes one row, and does something after it."""
    content = {"about": {"peers": {"peer": "1"}}, "rows": [{**row("a", ms=[1.0]), "seconds": {"native": [0.001]}}]}
    path.write_text(f"import sys, time\nopen(sys.argv[-1], 'w').write({json.dumps(content)!r})\n{after}\n")
    return bench.Step(path.stem, limit, str(path), ())


def test_a_benchmark_that_fails_or_hangs_is_named_and_its_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "busy", lambda: None)
    steps = [program(tmp_path / "good.py"), program(tmp_path / "fails.py", "sys.exit(1)")]
    steps.append(program(tmp_path / "hangs.py", "time.sleep(60)", limit=2.0))
    written = json.loads(bench.measure(tuple(steps), tmp_path / "machines", False).read_text(encoding="utf-8"))
    assert written["rows"] == [row("a", ms=[1.0])] * 3
    assert written["about"]["unfinished"] == ["fails", "hangs"]
    assert written["about"]["peers"] == {"peer": "1"}
    assert "busy" not in written["about"]


def test_a_busy_machine_is_refused_unless_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quiet, "busy", lambda: "other programs use 2.0 cores")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "QUICK", (program(tmp_path / "good.py"),))
    monkeypatch.setattr(sys, "argv", ["scripts/bench", "--quick"])
    monkeypatch.setattr(bench, "instruction_set", lambda: "avx2")
    assert bench.main() == 2
    assert "before good: other programs use 2.0 cores. Measure when" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()
    monkeypatch.setattr(sys, "argv", ["scripts/bench", "--quick", "--busy"])
    assert bench.main() == 0
    (written,) = (tmp_path / "build" / "machines").glob("*.json")
    assert json.loads(written.read_text(encoding="utf-8"))["about"]["busy"] is True


@pytest.mark.skipif(instruction_set() is None, reason="needs the native kernels")
def test_the_name_of_a_file_says_whether_the_instruction_set_was_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "instruction_set", lambda: "forced")
    monkeypatch.delenv("HEADWISE_NATIVE", raising=False)
    assert bench.file_name() == "forced.json"
    monkeypatch.setenv("HEADWISE_NATIVE", "portable")
    assert re.fullmatch(r"forced-on-\w+\.json", bench.file_name())


@pytest.mark.parametrize("step", [*bench.WHOLE, *bench.QUICK], ids=lambda step: step.name)
def test_the_programs_know_the_options_of_each_step(
    step: bench.Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = iter(range(100))
    monkeypatch.setattr(native, "measure", lambda *_, **__: row(str(next(made)), ms=[1.0]))
    monkeypatch.setattr(native, "instruction_set", lambda: "avx2")
    monkeypatch.setattr(decode, "last_level_cache", lambda: 2**18)
    monkeypatch.setattr(decode, "smallest", lambda gradients: {"headwise": 8.2, "sdpa": 3.6})
    monkeypatch.setattr(encoder_peers.Contestants, "all_of", contestants)
    monkeypatch.setattr(encoder, "rest", lambda name: None)
    monkeypatch.setattr(encoder, "products", lambda tokens: lambda texts: np.empty(0))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    written, threads = tmp_path / "figures.json", torch.get_num_threads()
    options = ["0.001" if option == "0.1" else option for option in step.options]  # of --gigabytes
    monkeypatch.setattr(sys, "argv", [step.program, *options, "--json", str(written)])
    {"native.py": native, "decode.py": decode, "encoder.py": encoder}[step.program].main()
    torch.set_num_threads(threads)
    content = json.loads(written.read_text(encoding="utf-8"))
    assert {"machine", "date", "torch", "headwise"} <= content["about"].keys()
    assert len({(each["table"], each["work"]) for each in content["rows"]}) == len(content["rows"]) > 0
    assert all(len(x) in (1, 3) for each in content["rows"] for x in each["figures"].values())
    assert all(x == sorted(x) or x[1] <= x[0] <= x[2] for each in content["rows"] for x in each["figures"].values())
    if step.program == "encoder.py":
        assert content["about"]["missing"] == {"headwise in the future": "ImportError: no module"}
        assert "pip install 'headwise[bench]'" in capsys.readouterr().err


def contestants(self: encoder_peers.Contestants) -> Any:
    def missing() -> Any:
        raise ImportError("no module")

    yield "headwise float32", lambda: {"": lambda texts: np.ones((len(texts), 4))}
    yield "headwise in the future", missing
    yield "Hugging Face", lambda: {each: lambda texts: np.ones((len(texts), 4)) for each in ("one thread", "two")}


@pytest.mark.skipif(instruction_set() is None, reason="needs the native kernels")
def test_a_row_of_statistics_and_one_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of headwise that a benchmark calls are still there."""
    monkeypatch.setattr(native, "PRODUCT", 64)
    for what, table in (("all statistics", "statistics"), ("forward + backward", "attention")):
        found = native.measure("causal", 32, torch.float32, what, 1, 1.0, flex=False)
        assert found["table"] == table
        assert found["work"] == f"causal, 32 tokens, float32, {what}"
        assert {"ms", "× SDPA", "of the product"} <= found["figures"].keys()
        assert ("× forward" in found["figures"]) == (table == "statistics")


def test_texts_keep_their_order_and_padding_does_not_count() -> None:
    texts = ["One two three four five six seven.", "One.", "One two three.", "One two."]

    def hidden(ids: list[list[int]]) -> np.ndarray:
        filled, real = encoder_peers.padded(ids)
        assert len(filled) <= 2
        return np.repeat(np.where(real, filled, 10**6)[..., None], 384, 2)  # a state is the id of its token

    expected = [np.mean(each) for each in encoder_peers.tokenized(texts)]
    for streams in (1, 2):
        found = encoder_peers.in_batches(hidden, 2, streams)(texts)
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_a_turn_begins_when_no_thread_of_the_process_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = iter([0.0, 0.02, 0.02, 0.04, 0.04, 0.04, 9.0])
    monkeypatch.setattr(encoder.time, "process_time", lambda: next(used))
    monkeypatch.setattr(encoder.time, "sleep", lambda seconds: None)
    encoder.rest("a peer")
    assert next(used) == 9.0
    clock = iter(range(100))
    monkeypatch.setattr(encoder.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(encoder.time, "process_time", lambda: next(clock))
    encoder.rest("a peer")
    assert "before a peer: some thread is still awake" in capsys.readouterr().err
