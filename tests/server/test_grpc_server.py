"""Calls over gRPC are counted, told to the log and guarded as requests over HTTP are."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from headwise.errors import FileError
from headwise.server import grpc_server
from headwise.server.metrics import Metrics
from headwise.server.observing import Observed
from headwise.server.protocols import open_inference_grpc
from headwise.server.protocols.sdk import messages
from headwise.server.settings import Settings

from .plain_engine import Explaining, logged

SERVICE = "/inference.GRPCInferenceService/"
TOKEN = "a-token-of-32-characters-or-more"
SECRET = "my-secret-text"

Call = Callable[..., Awaitable[Any]]


def talk(settings: Settings, ask: Callable[[Call], Awaitable[Any]]) -> tuple[Any, str, str]:
    """What `ask` gives, the metrics and the log."""

    async def run() -> Any:
        server = grpc_server.make(settings, metrics)
        open_inference_grpc.add(server, Observed(Explaining()))
        port = grpc_server.bind(server, settings, 0, "--grpc-port")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

                async def call(method: str, request: Any, **metadata: str) -> Any:
                    asking = channel.unary_unary(SERVICE + method, type(request).SerializeToString)
                    return await asking(request, metadata=tuple(metadata.items()))

                return await ask(call)
        finally:
            await server.stop(0)

    metrics = Metrics()
    with logged() as log:
        return asyncio.run(run()), metrics.text().decode(), log.getvalue()


def infer(text: str, model: str = "words") -> Any:
    tensor = messages.ModelInferRequest.InferInputTensor(
        name="text", datatype="BYTES", shape=[1], contents=messages.InferTensorContents(bytes_contents=[text.encode()])
    )
    return messages.ModelInferRequest(model_name=model, inputs=[tensor])


async def code(answer: Awaitable[Any]) -> str:
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def test_calls_are_counted_and_told_without_what_they_held() -> None:
    async def ask(call: Call) -> list[str]:
        return [
            await code(call("ModelInfer", infer(SECRET), **{"x-request-id": "trace-1"})),
            await code(call("ModelInfer", infer(f"bad {SECRET}"))),
            await code(call("ModelInfer", infer("a", SECRET))),
            await code(call("Nothing", infer("a"))),
        ]

    codes, metrics, log = talk(Settings(), ask)
    assert codes == ["OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"]
    for each in codes[:3]:
        labels = f'code="{each}",protocol="grpc",route="{SERVICE}ModelInfer"'
        assert f"headwise_requests_total{{{labels}}} 1.0" in metrics
    assert 'headwise_requests_in_flight{protocol="grpc"} 0.0' in metrics
    first, second, third = map(json.loads, log.splitlines())
    assert (first["code"], first["model"], first["rows"], first["request"]) == ("OK", "words", 1, "trace-1")
    assert (second["code"], third["code"], third.get("model")) == ("INVALID_ARGUMENT", "NOT_FOUND", None)
    assert SECRET not in metrics + log


def test_the_token_is_wanted_of_all_but_probes() -> None:
    async def ask(call: Call) -> list[str]:
        return [
            await code(call("ServerLive", messages.ServerLiveRequest())),
            await code(call("ModelInfer", infer("a"))),
            await code(call("ModelInfer", infer("a"), authorization=f"Bearer {TOKEN}x")),
            await code(call("ModelInfer", infer("a"), authorization=f"Bearer {TOKEN}")),
        ]

    codes, _, _ = talk(Settings(token=TOKEN), ask)
    assert codes == ["OK", "UNAUTHENTICATED", "UNAUTHENTICATED", "OK"]


def test_a_message_that_is_too_large_is_refused() -> None:
    async def ask(call: Call) -> str:
        return await code(call("ModelInfer", infer("x" * 2000)))

    assert talk(Settings(max_body=1000), ask)[0] == "RESOURCE_EXHAUSTED"


def test_a_port_that_is_in_use_is_named() -> None:
    async def bind(port: int) -> None:
        grpc_server.bind(grpc_server.make(Settings(), Metrics()), Settings(), port, "--grpc-port")

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(FileError, match=f"^--grpc-port {port}: the port is in use"):
            asyncio.run(bind(port))
