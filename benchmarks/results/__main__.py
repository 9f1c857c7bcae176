"""Every experiment of docs/results.md, or those that are named: `scripts/results sst2 etth1`."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import page
from headwise.errors import HeadwiseError

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ("sst2", "etth1", "multi30k", "xquad", "dialogsum", "digits")  # in the order of the page


def main() -> int:
    arguments = argparse.ArgumentParser(prog="scripts/results", description=__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(EXPERIMENTS)}. Default: all")
    arguments.add_argument("--data", type=Path, default=ROOT / ".." / "shared" / "data", help="the folder of the data")
    arguments.add_argument("--work", type=Path, default=ROOT / "results", help="where run folders are kept")
    arguments.add_argument("--docs", type=Path, default=ROOT / "docs", help="where results.md and results.json are")
    arguments.add_argument(
        "--quick", action="store_true", help="one epoch on few rows, to see that everything runs; writes no results"
    )
    arguments.add_argument("--reuse", action="store_true", help="train nothing again that --work has from before")
    chosen = arguments.parse_args()

    names = chosen.names or list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        return refuse(f"there is no experiment {unknown[0]!r}. There are: {', '.join(EXPERIMENTS)}")
    data = chosen.data.resolve()
    if not data.is_dir() and names != ["digits"]:  # those come with scikit-learn
        return refuse(
            f"no folder {chosen.data}. It has sst2, etth1, multi30k, dialogsum and xquad: name it with --data"
        )
    for name in names:
        folder = (chosen.work / ("quick" if chosen.quick else "") / name).resolve()
        if not chosen.reuse:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            result = importlib.import_module(f"benchmarks.results.{name}").run(data, folder, quick=chosen.quick)
        except (HeadwiseError, OSError) as error:
            return refuse(f"{name}: {error}")
        print(f"\n{page.goal_table({name: asdict(result)})}\n{page.section(result)}", flush=True)
        if not chosen.quick:
            page.write(result, chosen.docs, EXPERIMENTS)
            print(f"scripts/results: wrote {name} into {chosen.docs / 'results.md'}", flush=True)
    return 0


def refuse(message: str) -> int:
    print(f"scripts/results: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
