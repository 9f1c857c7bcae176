"""What Ray workers make of files and corpora while they are killed: `python on_ray.py FOLDER STEP...`.

In a process of its own, because Ray starts others and warns. It prints the outcome of each step as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.tasks.bulk.answered import Answered
from headwise.tasks.bulk.parts import Answers
from headwise.tasks.bulk.running import Engine, compute
from headwise.tasks.rows.chunks import look_through
from headwise.tasks.rows.sources import Table

ROWS, BOMB = 40, "bomb"
WORDS = ("the", "cat", "saw", "a", "dog", "and", "ran", "on", "over", "far", "hills")
TEXTS = [" ".join(WORDS[(number + i) % 11] for i in range(5 + number % 7)) for number in range(120)]
TEXTS[70] = f"a {BOMB}"


def explode(began: int, marker: Path | None) -> None:
    """End this process, unless it is the one that began, as the lack of memory does; with a marker, only once."""
    if os.getpid() == began:
        return
    if marker is not None:
        if marker.exists():
            return
        marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Lengths:
    """The length of each text."""

    began: int  # a process
    marker: Path | None
    loads: bool = True  # else what loads it explodes

    def load(self) -> Answers:
        if not self.loads:
            explode(self.began, None)
        return self.of

    def of(self, table: Table) -> Answered:
        texts = table.columns["text"]
        if BOMB in texts:
            explode(self.began, self.marker)
        columns = {**table.columns, "length": [len(text) for text in texts]}
        return Answered(columns, len(texts), {}, table.unit)

    def state(self) -> Mapping[str, Any]:
        return {}

    def told(self, name: str, was: Any) -> str:
        return name


def rows(folder: Path, out: str, engine: Engine, marker: Path | None = None, *, loads: bool = True) -> Path:
    """The lengths of the texts of a file, in parts of three rows."""
    path = folder / "in.csv"
    job = Lengths(os.getpid(), marker, loads)
    written = compute(
        job,
        job.of,
        path,
        folder / out,
        lambda chunk: look_through(path, ("text",), chunk),
        chunk=3,
        engine=engine,
        workers=2,
        address=None,
        gpus=False,
        restart=True,
        tell=lambda *_: None,
    )
    assert written.rows == ROWS
    return folder / out


def corpus(folder: Path, out: str, engine: Engine, marker: Path | None, **given: Any) -> Path:
    """The profile of a model that explodes where it reads the bomb."""
    from headwise.profiles import profile
    from tests.profiles.tiny import code, tiny

    began = os.getpid()
    model = tiny(first=lambda ids: explode(began, marker) if bool((ids == code(BOMB)).any()) else None)
    profile(model, TEXTS, name="corpus", length=16, batch=40, out=folder / out, engine=engine, **given)
    return folder / out


def outcome(step: Callable[[], object]) -> str:
    """What went wrong, or "done"."""
    try:
        step()
    except HeadwiseError as error:
        return str(error)
    return "done"


def main(folder: Path, *steps: str) -> None:
    from headwise.tasks.bulk.ray_engine import connected

    does: dict[str, Callable[[], Path]] = {
        "rows, a worker killed": lambda: rows(folder, "killed.csv", "ray", folder / "row"),
        "rows, a worker killed always": lambda: rows(folder, "always.csv", "ray"),
        "rows, no worker loads": lambda: rows(folder, "none.csv", "ray", loads=False),
        "corpus, a worker killed": lambda: corpus(folder, "killed.hw", "ray", folder / "text"),
        "corpus, a worker killed always": lambda: corpus(folder, "always.hw", "ray", None),
        "corpus, the beginning": lambda: corpus(folder, "part.hw", "ray", folder / "text", max_tokens=300),
    }
    with connected(2, None):
        found = {step: outcome(does[step]) for step in steps}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
