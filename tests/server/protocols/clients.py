"""Servers on free ports, and the clients whose packages cannot stand beside the server's in one process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from unittest import mock

import grpc
import uvicorn
from fastapi import FastAPI
from google.protobuf import descriptor_pool

from headwise.server.limits import Limits
from headwise.server.protocols import open_inference_grpc, open_inference_http, tensorflow_grpc, tensorflow_rest
from tests.server.protocols.engines import InProcess


def triton_grpc() -> ModuleType:
    """`tritonclient.grpc`, its messages in a pool of their own: they have the names of KServe's."""
    pool = descriptor_pool.DescriptorPool()
    with mock.patch.object(descriptor_pool, "Default", return_value=pool):
        return importlib.import_module("tritonclient.grpc")


def until(happened: Callable[[], bool]) -> None:
    """Wait for what happens in a server's thread."""
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Addresses:
    """Where a server listens, and the engine behind it."""

    http: str
    grpc: str
    engine: InProcess
    http_port: int


@contextlib.contextmanager
def serving() -> Iterator[Addresses]:
    """All protocols over an `InProcess` engine, in a thread, on free ports of 127.0.0.1."""
    engine = InProcess()
    app = FastAPI()
    app.include_router(open_inference_http.router(engine))
    app.include_router(tensorflow_rest.router(engine))
    app.add_middleware(Limits, most=2**20, patience=60)
    http = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none"))
    ports: list[int] = []
    started, loops = threading.Event(), []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        rpc = grpc.aio.server()
        open_inference_grpc.add(rpc, engine)
        tensorflow_grpc.add(rpc, engine)
        rpc_port = rpc.add_insecure_port("127.0.0.1:0")
        await rpc.start()
        running = asyncio.ensure_future(http.serve())
        while not http.started and not running.done():
            await asyncio.sleep(0.01)
        ports.extend((http.servers[0].sockets[0].getsockname()[1], rpc_port))
        started.set()
        await running
        await rpc.stop(1)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    with mock.patch.object(uvicorn.Server, "capture_signals", contextlib.nullcontext):
        thread.start()
        assert started.wait(30)
    try:
        yield Addresses(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", engine, ports[0])
    finally:
        http.should_exit = True
        thread.join()


@contextlib.contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """An application in a thread, on a free port of 127.0.0.1: its address."""
    http = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=http.run, daemon=True)
    with mock.patch.object(uvicorn.Server, "capture_signals", contextlib.nullcontext):
        thread.start()
        until(lambda: http.started)
    try:
        yield f"127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join()
