"""An engine in the process, over a model that takes a column of each kind: what the tests of protocols talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import ArgumentError, HeadwiseError, RequestRefused
from headwise.server.engine import Served
from headwise.server.interface import Description
from headwise.tasks.columns import Column, Row

CLASSIFY = Description(
    task="classify",
    platform="headwise_torch",
    inputs=(Column("text", "BYTES", says="what to classify"),),
    outputs=(Column("label", "BYTES"), Column("probabilities", "FP32", (2,)), Column("tokens", "BYTES", (-1,))),
    labels=("short", "long"),
    explains=True,
    example={"text": "a cat"},
)
MIXED = Description(
    task="tensors",
    platform="headwise_onnx",
    inputs=(
        Column("ids", "INT64", (3,)),
        Column("scale", "FP32", optional=True),
        Column("on", "BOOL", optional=True),
        Column("image", "BYTES", binary=True, optional=True),
    ),
    outputs=(
        Column("total", "INT64"),
        Column("scaled", "FP64", (3,)),
        Column("size", "INT32"),
        Column("was_on", "BOOL"),
    ),
)
WRITE = Description(
    task="write",
    platform="headwise_torch",
    inputs=(Column("text", "BYTES"),),
    outputs=(Column("written", "BYTES"),),
    streams=True,
)
ONE = Description(
    task="tensors", platform="headwise_onnx", inputs=(Column("x", "FP32"),), outputs=(Column("y", "FP32"),)
)


def classified(text: str) -> Row:
    if "bad" in text:
        raise ArgumentError("text: it has 99 tokens, and 9 is the most")
    if text == "broken":
        raise ZeroDivisionError(f"secret {text}")
    long = len(text) / (len(text) + 4)
    return {
        "label": "long" if long > 0.5 else "short",
        "probabilities": np.array([1 - long, long], np.float32),
        "tokens": np.array(text.split(), np.object_),
    }


def mixed(row: Row) -> Row:
    assert isinstance(row["ids"], np.ndarray)
    assert row["ids"].dtype == np.int64
    assert isinstance(row.get("image", b""), bytes)
    return {
        "total": int(row["ids"].sum()),
        "scaled": row["ids"] * float(row.get("scale", 1.0)),
        "size": len(row.get("image", b"")),
        "was_on": bool(row.get("on", False)),
    }


class InProcess:
    """The models above, version "1" and classify also "2". A text with "wait" is answered only when it is cancelled;
    one with "busy" finds a full queue."""

    def __init__(self) -> None:
        self.ready = self.live = True
        self.served = {
            (name, version): Served(name, version, description, True)
            for name, version, description in (
                ("words", "1", CLASSIFY),
                ("words", "2", CLASSIFY),
                ("mixed", "1", MIXED),
                ("writer", "1", WRITE),
                ("one", "1", ONE),
            )
        }
        self.waiting = 0
        self.cancelled = 0
        self.timeouts: list[float | None] = []

    def models(self) -> list[Served]:
        return list(self.served.values())

    def find(self, name: str, version: str | None = None) -> Served:
        versions = [v for n, v in self.served if n == name]
        if not versions or (version is not None and version not in versions):
            raise RequestRefused("not_found", f"no model {name!r}" + (f" of version {version!r}" if version else ""))
        return self.served[name, version or max(versions)]

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        self.find(name, version)
        self.timeouts.append(timeout)
        if any("busy" in str(row.get("text")) for row in rows):
            raise RequestRefused("busy", "the queue is full: 8 requests wait", retry_after=1.5)
        if any("wait" in str(row.get("text")) for row in rows):
            self.waiting += 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.waiting -= 1
        return [self._answer(name, row) for row in rows]

    def _answer(self, name: str, row: Row) -> Row | HeadwiseError:
        try:
            if name == "words":
                return classified(row["text"])
            if name == "writer":
                return {"written": row["text"].upper()}
            return {"y": row["x"] * 2} if name == "one" else mixed(row)
        except HeadwiseError as error:
            return error

    async def stream(
        self, name: str, version: str | None, row: Row, *, timeout: float | None = None
    ) -> AsyncIterator[str]:
        for word in row["text"].upper().split(" "):
            if word == "BAD":
                raise RequestRefused("timeout", "it took longer than 1 s")
            yield word
            await asyncio.sleep(0)

    async def explain(
        self,
        name: str,
        version: str | None,
        row: Row,
        *,
        page: bool = False,
        rows: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any] | str:
        raise RequestRefused("bad_input", "this model does not explain")

    async def load(self, name: str, path: Path | None = None) -> None:
        if name != "words":
            raise RequestRefused("not_found", f"no model {name!r}")
        self.served["words", "3"] = Served("words", "3", CLASSIFY, False)

    async def unload(self, name: str) -> None:
        if ("words", "3") not in self.served or name != "words":
            raise RequestRefused("not_found", f"no model {name!r}")
        del self.served["words", "3"]
