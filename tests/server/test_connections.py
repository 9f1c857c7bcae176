"""A connection whose head does not come, or does not end, is closed; others are left alone."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headwise.server import connections
from headwise.server.run import _http_server
from headwise.server.settings import Settings


async def app(scope: object, receive: object, send: object) -> None:
    await receive()
    await asyncio.sleep(0.1)  # longer than a head may take
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def talk(*parts: bytes, pause: float = 0.0) -> bytes:
    """What is answered until the connection is closed."""

    async def run() -> bytes:
        server = _http_server(app, Settings())
        listener = await asyncio.get_running_loop().run_in_executor(None, _bound)
        serving = asyncio.ensure_future(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)
            try:
                return await asyncio.wait_for(reader.read(), 30)
            except ConnectionError:
                return b"reset"
        finally:
            writer.close()
            server.should_exit = True
            await serving

    return asyncio.run(run())


def _bound() -> object:
    from headwise.server.listening import bind

    return bind("127.0.0.1", 0, "--port")


HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


def test_a_head_that_does_not_come_or_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    assert talk() in (b"", b"reset")
    assert talk(HEAD) in (b"", b"reset")

    monkeypatch.setattr(connections, "HEAD_BYTES", 1000)
    assert talk(HEAD, *[b"X: " + b"y" * 500 + b"\r\n"] * 20) in (b"", b"reset")


def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(connections, "HEAD_BYTES", 60)
    post = b"POST / HTTP/1.1\r\nContent-Length: 200\r\nConnection: close\r\n\r\n"
    for parts in ([HEAD + b"Connection: close\r\n\r\n"], [post, b"x" * 100, b"x" * 100]):
        assert talk(*parts).startswith(b"HTTP/1.1 204")
