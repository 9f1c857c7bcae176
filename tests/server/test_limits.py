"""Bodies that are too large, too slow or packed; a timeout that a request may shorten only."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from headwise.server.limits import Limits
from headwise.server.settings import Settings

from .plain_engine import Explaining, client, scope

TEXT = b'{"text": "abcd"}'


def post(body: bytes | Iterable[bytes], *, most: int = 100, path: str = "/classify", **headers: str) -> httpx.Response:
    return client(Settings(max_body=most), **headers).post(path, content=body)


@pytest.mark.parametrize("path", ["/classify", "/v2/models/words/infer", "/v1/models/words:predict"])
def test_a_body_that_announces_too_much_is_not_read(path: str) -> None:
    answer = post(b"x" * 101, path=path)
    assert answer.status_code == 413
    assert answer.json()["error"] == "the body: expected at most 100 bytes. Received: 101 bytes"


def test_packed_bodies_are_unpacked_and_counted_so() -> None:
    headers = {"Content-Encoding": "gzip"}
    assert post(gzip.compress(TEXT), **headers).status_code == 200
    assert post(zlib.compress(TEXT), **{"Content-Encoding": "deflate"}).status_code == 200
    bomb = gzip.compress(b"x" * 10_000)
    assert len(bomb) < 100
    assert post(bomb, **headers).status_code == 413
    assert post(b"no gzip", **headers).status_code == 400
    assert post(gzip.compress(TEXT)[:-4], **headers).status_code == 400
    assert post(gzip.compress(TEXT) + b"more", **headers).status_code == 400
    assert post(TEXT, **{"Content-Encoding": "br"}).status_code == 415


def run(receive: Any, patience: float) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError("nothing runs before its body is there")

    asyncio.run(Limits(never, most=100, patience=patience)(scope("/classify"), receive, send))
    return sent


def test_chunks_are_counted() -> None:
    assert post([TEXT]).status_code == 200
    read: list[bytes] = []

    async def receive() -> Any:
        read.append(b"x" * 30)
        return {"type": "http.request", "body": read[-1], "more_body": True}

    assert run(receive, 10)[0]["status"] == 413
    assert len(read) <= 5


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    assert run(receive, 0.01)[0]["status"] == 408


def test_a_client_that_leaves_while_it_sends_is_not_answered() -> None:
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    assert run(receive, 10) == []


def test_a_request_may_have_a_timeout_of_its_own() -> None:
    """The pool takes the shorter one of this and its own: tests/server/pool/test_limits.py."""
    engine = Explaining()
    asking = client(Settings(timeout=5), engine)
    asking.post("/classify", json={"text": "a"})
    inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]
    for microseconds in (1_000_000, 9_000_000):
        body = {"inputs": inputs, "parameters": {"timeout": microseconds}}
        asking.post("/v2/models/words/infer", json=body)
    assert engine.timeouts == [None, 1, 9]
