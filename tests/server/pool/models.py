"""Models that do as a row tells them, for workers to open; they import nothing heavy."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, CheckpointError, HeadwiseError
from headwise.server.interface import Description
from headwise.tasks.columns import Column, Row

OPENER = "tests.server.pool.models:open_model"


def open_model(path: Path, *, backend: str, precision: str, threads: int) -> Obedient:
    """The model of a file whose text is its word, and what it does first; "damaged" and "deadly" cannot be loaded."""
    text = (path / "word" if path.is_dir() else path).read_text()
    if text == "damaged":
        raise CheckpointError(f"{path} is damaged")
    if text == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    _do(text)
    if text == "surprising":
        raise KeyError("surprise")
    return Joining(text, threads) if text == "joining" else Obedient(text, threads)


class Obedient:
    """Rows are {"text": …, "do": …}. The answer has the text, the model's own word, and the rows of the batch."""

    def __init__(self, word: str, threads: int) -> None:
        self.word, self.threads = word, threads
        self.loaded_in = threading.current_thread()
        self.description = Description(
            task="echo",
            platform="headwise_test",
            inputs=(Column("text", "BYTES"), Column("do", "BYTES", optional=True)),
            outputs=(Column("text", "BYTES"),),
            streams=True,
            explains=True,
            example={"text": "an example"},
        )

    def read(self, row: Row) -> Row:
        if row.get("do") == "be unreadable":
            raise ArgumentError("expected a readable text")
        return row

    def tokens(self, row: Row) -> int:
        return len(row["text"].split())

    def answer(self, rows: Sequence[Row]) -> list[Row | HeadwiseError]:
        for row in rows:
            _do(row.get("do", ""))
        batch = [row["text"] for row in rows]
        return [self._answer(row, batch) for row in rows]

    def _answer(self, row: Row, batch: list[str]) -> Row | HeadwiseError:
        if row.get("do") == "refuse":
            return ArgumentError("expected another text")
        if row.get("do") == "answer a lock":
            return {"text": threading.Lock()}
        facts: Row = {"word": self.word, "pid": os.getpid(), "threads": self.threads, "batch": batch}
        if row.get("do") == "tell of the loading thread":
            facts["loading thread"] = self.loaded_in.is_alive()
        if row.get("do") == "count models":
            facts["models"] = sum(isinstance(thing, Obedient) for thing in gc.get_objects())
        return {"text": row["text"], **facts}

    def stream(self, row: Row) -> Iterator[str]:
        for word in row["text"].split():
            yield word + " "
            _do(row.get("do", ""))

    def explain(self, row: Row) -> dict[str, Any]:
        _do(row.get("do", ""))
        return {"calls": 1, "text": row["text"]}

    def attend(self, row: Row, places: Sequence[int]) -> dict[str, Any]:
        return {"answer": row, "rows": list(places)}

    def page(self, row: Row) -> str:
        return f"<p>{row['text']}</p>"


class Joining(Obedient):
    """Answers rows side by side: one step for each word of a row."""

    def __init__(self, word: str, threads: int) -> None:
        super().__init__(word, threads)
        self.description = replace(self.description, joins=True)

    def running(self, most: int) -> SideBySide:
        return SideBySide(self, most)


class SideBySide:
    def __init__(self, model: Joining, most: int) -> None:
        self._model, self._most, self._given = model, most, 0
        self._rows: dict[int, tuple[Row, list[str]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> int:
        self._given += 1
        self._rows[self._given] = row, row["text"].split()
        assert len(self._rows) <= self._most
        return self._given

    def cancel(self, ticket: int) -> None:
        del self._rows[ticket]

    def step(self) -> list[tuple[int, Row | Exception]]:
        together, ended = [row["text"] for row, _ in self._rows.values()], []
        for ticket, (row, words) in list(self._rows.items()):
            error: Exception | None = None
            try:
                _do(row.get("do", ""))
            except KeyError as raised:
                error = raised
            words.pop()
            if error or not words:
                del self._rows[ticket]
                ended.append((ticket, error or self._model._answer(row, together)))
        return ended


def _do(what: str) -> None:
    if what == "raise":
        raise KeyError("a secret that a client wrote")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what.startswith("sleep "):
        time.sleep(float(what.removeprefix("sleep ")))
    if what.startswith("wait for "):
        until = time.monotonic() + 20
        while not os.path.exists(what.removeprefix("wait for ")) and time.monotonic() < until:
            time.sleep(0.005)
