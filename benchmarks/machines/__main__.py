"""Measure this machine, and write its figures and the tables of docs/performance.md: `scripts/bench`.

Benchmarks run one after another, each in a process of its own with a limit; a benchmark that fails or takes longer is
named, and the rows that it had are kept. Their figures go into benchmarks/machines/INSTRUCTION_SET.json. With
HEADWISE_NATIVE=avx2 on a machine with AMX it is avx2-on-amx.json: the peers cannot be held to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.limited import run_limited
from benchmarks.machines import page, quiet
from headwise.native.library import VARIABLE, instruction_set, missing

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "benchmarks" / "machines"
BOTH = ("--passes", "forward", "forward + backward")
STATISTICS = ("--passes", "lse, entropy", "all statistics")
PATIENCE = 60.0  # seconds that a benchmark waits for a quiet machine


@dataclass(frozen=True)
class Step:
    """A benchmark with its options and its limit in seconds."""

    name: str
    limit: float
    program: str
    options: tuple[str, ...]


def native(name: str, limit: float, cases: tuple[str, ...], lengths: str, dtypes: str, *more: str) -> Step:
    options = ("--cases", *cases, "--lengths", *lengths.split(), "--dtypes", *dtypes.split(), *more)
    return Step(name, limit, "native.py", options)


SOME = ("dense", "causal", "causal window 256")
FEW = ("--rounds", "5", "--seconds", "12")
WHOLE = (  # limits of 20 minutes together; on two cores with AVX2 they take about 14
    native("dense", 130, ("dense",), "512 1024 2048 4096 8192", "float32", *BOTH, *FEW, "--no-flex"),
    native("masks", 100, (*SOME[1:], "ALiBi, causal"), "4096", "float32", *BOTH, *FEW, "--no-flex"),
    native("bfloat16", 130, SOME, "4096", "bfloat16", *BOTH, *FEW, "--no-flex"),
    native("long", 270, (*SOME[1:], "packed, causal", "BigBird, 64"), "8192", "float32", *BOTH, *FEW),
    native("statistics", 120, SOME, "2048", "float32 bfloat16", *STATISTICS, *FEW, "--no-flex"),
    Step("decoding", 60, "decode.py", ()),
    Step("encoder", 360, "encoder.py", ("--texts", "326", "--rounds", "3")),
)
QUICK = (  # limits of 3 minutes together
    native("attention", 60, SOME, "1024", "float32 bfloat16", *BOTH, "--rounds", "3", "--seconds", "2", "--no-flex"),
    native("statistics", 20, SOME[1:2], "1024", "float32", *STATISTICS, "--rounds", "3", "--seconds", "2", "--no-flex"),
    Step("decoding", 20, "decode.py", ("--gigabytes", "0.1", "--rounds", "3")),
    Step(
        "encoder", 70, "encoder.py", ("--texts", "20", "--rounds", "1", "--only", "headwise", "Hugging", "CTranslate2")
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="three minutes, to see that everything runs: into build/machines"
    )
    parser.add_argument("--busy", action="store_true", help="measure although other programs run; the file says so")
    parser.add_argument("--tables", action="store_true", help="measure nothing: the tables of the files as they are")
    asked = parser.parse_args()
    if not asked.tables:
        if instruction_set() is None:
            return refuse(f"there are no native kernels: {missing()}")
        begun = time.monotonic()
        try:
            path = measure(
                QUICK if asked.quick else WHOLE, ROOT / "build/machines" if asked.quick else MACHINES, asked.busy
            )
        except RuntimeError as reason:
            return refuse(f"{reason}. Measure when nothing else runs, or all the same with --busy")
        print(f"scripts/bench: wrote {path.relative_to(ROOT)} after {(time.monotonic() - begun) / 60:.0f} minutes")
    if not asked.quick:
        page.fill(page.DOCUMENT, page.read(MACHINES))
        print(f"scripts/bench: wrote the tables of {page.DOCUMENT.relative_to(ROOT)}")
    return 0


def refuse(message: str) -> int:
    print(f"scripts/bench: {message}", file=sys.stderr)
    return 2


def measure(steps: tuple[Step, ...], folder: Path, busy: bool) -> Path:
    """Run the steps and write what they found. Raises RuntimeError on a machine that is not quiet, unless `busy`."""
    about: dict[str, Any] = figures.about()
    rows: list[dict[str, Any]] = []
    unfinished, disturbed = [], False
    for step in steps:
        reason = quiet.busy() if busy or step is steps[0] else quiet.wait_until_quiet(PATIENCE)
        if reason and not busy:
            raise RuntimeError(f"before {step.name}: {reason}")
        disturbed |= reason is not None
        print(f"== {step.name}, at most {step.limit:.0f} s", flush=True)
        found, ended = run(step)
        unfinished += [] if ended else [step.name]
        about |= {key: found["about"][key] for key in ("peers", "missing") if key in found["about"]}
        rows += [{key: row[key] for key in ("table", "work", "figures")} for row in found["rows"]]
    if not rows:
        raise RuntimeError("no benchmark gave a figure")
    about |= {"unfinished": unfinished} if unfinished else {}
    about |= {"busy": True} if disturbed else {}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name()
    figures.write(path, about, rows)
    return path


def run(step: Step) -> tuple[dict[str, Any], bool]:
    """What a step wrote, and whether it came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, str(ROOT / "benchmarks" / step.program), *step.options, "--json", str(written)]
        ended = run_limited(command, step.limit) == "done"
        if not ended:
            print(f"scripts/bench: {step.name} did not come to its end in {step.limit:.0f} s", file=sys.stderr)
        if not written.exists():
            return {"about": {}, "rows": []}, False
        return json.loads(written.read_text(encoding="utf-8")), ended


def file_name() -> str:
    """`amx.json`, or `avx2-on-amx.json` where HEADWISE_NATIVE forces another set than would be taken."""
    used, own = instruction_set(), instruction_set()
    if VARIABLE in os.environ:
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        asking = "from headwise.native.library import instruction_set; print(instruction_set())"
        command = [sys.executable, "-c", asking]
        own = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    return f"{used}.json" if used == own else f"{used}-on-{own}.json"


if __name__ == "__main__":
    sys.exit(main())
