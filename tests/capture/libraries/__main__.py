"""What the watch makes of models of other libraries: `python -m tests.capture.libraries [library] [part of a name]`.

Those that are not installed are named; `--write`, with all that are, writes the table in docs/watch.md.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.capture.families.compare import VERDICTS, Result, compare
from tests.capture.libraries.library import LIBRARIES, Cases, cases

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "watch.md"
BEGIN, END = "<!-- libraries: begin -->", "<!-- libraries: end -->"
SECONDS, BYTES = 60, 5 * 2**30


def examine(models: Cases, name: str) -> Result | str:
    """One model, in a process of its own, so that a large one ends only itself; or the error."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(models, name, theirs), daemon=True)
    process.start()
    theirs.close()
    found: Result | str = f"not done after {SECONDS} s"
    if mine.poll(SECONDS):
        try:
            found = mine.recv()
        except EOFError:
            found = "the process ended"
    process.kill()
    process.join()
    return found


def _child(models: Cases, name: str, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    torch.manual_seed(0)
    try:
        pipe.send(compare(*models[name]()))
    except Exception as error:  # what a library raises is for the reader
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def shown(result: Result | str) -> list[str]:
    """The counts of a model, and what is not exact."""
    if isinstance(result, str):
        return [f"ERROR {result}"]
    count = result.count()
    counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict]) or "no attention"
    lines = [f"{counts}{', OUTPUT CHANGED' if result.changed else ''}"]
    notes = [f"{f.verdict}: {f.module}: {f.note}" for f in result.findings if f.verdict not in ("exact", "bounded")]
    notes += [f"also {other}" for other in result.other]
    notes += [f"not taken apart: {name}" for name in result.fused]
    return [*lines, *(f"    {note[:240]}" for note in dict.fromkeys(notes))]


def table(totals: dict[str, Counter[str]]) -> str:
    """What stands in docs/watch.md."""
    columns = ("models", *VERDICTS)
    lines = [f"| library | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for library, total in totals.items():
        name = f"{library} {version(LIBRARIES[library].split()[0])}"
        lines.append(f"| {name} | {' | '.join(str(total[column]) for column in columns)} |")
    return "\n".join([BEGIN, *lines, END])


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    only, part = (*arguments, "", "")[:2]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a process with threads cannot be forked
    totals: dict[str, Counter[str]] = {}
    for library, packages in LIBRARIES.items():
        if only not in ("", library):
            continue
        try:
            models = cases(library)
        except ImportError as error:
            print(f"{library}: not installed ({error}). pip install {packages}")
            continue
        total = totals[library] = Counter[str]()
        for name in [name for name in models if part in name]:
            result = examine(models, name)
            total.update(Counter({"errors": 1}) if isinstance(result, str) else result.count() + Counter({"models": 1}))
            first, *rest = shown(result)
            print(f"{library:<15}{name:<45} {first}", *rest[:6], sep="\n", flush=True)
        print(f"{library}: " + ", ".join(f"{n} {what}" for what, n in total.items()), flush=True)
    if "--write" in sys.argv and not arguments:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + table(totals) + rest.partition(END)[2])
    return int(any(total["wrong"] or total["silent"] for total in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
