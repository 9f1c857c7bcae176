"""The process of `headwise serve`: workers, HTTP and gRPC in one event loop, from start to shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # headwise reports errors itself

from headwise.language import Sentence, said
from headwise.server import logs
from headwise.server.auth import is_local
from headwise.server.listening import address, bind, check_tls
from headwise.server.metrics import Metrics
from headwise.server.protocols import PROTOCOLS
from headwise.server.settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from headwise.server.engine import Engine
    from headwise.server.pool.pool import Pool

Say = Callable[[str], None]
_FAREWELL = 0.5  # seconds in which open connections are told to close before the server stops listening


def serve(models: Mapping[str, Path], settings: Settings, *, say: Say = print, debug: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the accepted requests and return.

    After the first signal, the server reports that it is not ready, closes connections with their next answer, stops
    accepting, and gives accepted requests `settings.drain` seconds. A second signal ends the process at once with exit
    code 1.

    Args:
        models: name -> run folder or export.
        say: called with each of a few lines for the user: the models and addresses.
        debug: log the messages of errors, which may quote what clients sent.

    Raises:
        ArgumentError, FileError, CheckpointError, …: invalid settings or models; no process is left running.
    """
    loop = _event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_Process(models, settings, say, debug).run())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _Process:
    def __init__(self, models: Mapping[str, Path], settings: Settings, say: Say, debug: bool) -> None:
        self._models, self._settings, self._say, self._debug = models, settings, say, debug
        self._told = asyncio.Event()  # set when the process should stop
        self._metrics = Metrics()

    async def run(self) -> None:
        check_tls(self._settings)
        self._heed_signals()
        async with contextlib.AsyncExitStack() as stack:
            # Do the things that may fail before those that take long.
            listener = stack.enter_context(bind(self._settings.host, self._settings.http_port, "--port"))
            servers = await self._grpc(stack)
            logs.set_up(debug=self._debug)
            engine = await self._loaded(stack)
            if engine is None:  # a signal came before the models were loaded
                return
            await self._until_told(engine, listener, servers)

    async def _until_told(self, engine: Engine, listener: socket.socket, servers: dict[str, Any]) -> None:
        from headwise.server.app import create
        from headwise.server.observing import Observed

        app = create(engine, self._settings, self._metrics, self._told.is_set)
        observed = Observed(engine, self._told.is_set)
        for name, (server, _) in servers.items():
            PROTOCOLS[name].add(server, observed)
            await server.start()
        http = _http_server(app, self._settings)
        serving = asyncio.ensure_future(http.serve([listener]))
        telling = asyncio.ensure_future(self._told.wait())
        try:
            while not http.started and not serving.done():
                await asyncio.sleep(0.005)
            self._say_where(engine, listener, servers)
            await asyncio.wait((serving, telling), return_when=asyncio.FIRST_COMPLETED)
            if self._told.is_set():
                await self._drain(http, listener, servers, serving)
            await serving
        finally:
            telling.cancel()
            await asyncio.gather(*(server.stop(0) for server, _ in servers.values()))

    async def _drain(
        self, http: uvicorn.Server, listener: socket.socket, servers: dict[str, Any], serving: asyncio.Future[None]
    ) -> None:
        """Finish the accepted requests."""
        began = time.monotonic()
        logs.told(logging.INFO, "draining", seconds=self._settings.drain)
        calls = [asyncio.ensure_future(server.stop(self._settings.drain)) for server, _ in servers.values()]
        end = began + min(_FAREWELL, self._settings.drain)
        while time.monotonic() < end and select.select([listener], [], [], 0)[0]:
            await asyncio.sleep(0)  # accept connections that are still in the listen queue
        for server in http.servers:
            server.close()
        # A request may be in transit on every open connection, and closing it would lose the request. So each answer
        # sent from now on closes its connection, and idle connections are closed only after that.
        while http.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        http.config.timeout_graceful_shutdown = max(0, self._settings.drain - (time.monotonic() - began))  # type: ignore[assignment]
        http.should_exit = True
        await asyncio.gather(serving, *calls)
        logs.told(logging.INFO, "drained", ms=round((time.monotonic() - began) * 1000))

    async def _loaded(self, stack: contextlib.AsyncExitStack) -> Pool | None:
        """Start the pool of workers and load the models. Returns the pool, or None if a signal to stop came first."""
        starting = asyncio.ensure_future(stack.enter_async_context(_pool(self._models, self._settings)))
        telling = asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait((starting, telling), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return None
            engine = starting.result()
        finally:
            telling.cancel()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self._metrics.tell_engine(engine, engine.statistics)
        return engine

    async def _grpc(self, stack: contextlib.AsyncExitStack) -> dict[str, Any]:
        """Make the gRPC servers. Returns a dict: name of a protocol -> (its server, bound, not started; its port)."""
        wanted = {name: port for name, port in self._settings.ports.items() if port is not None}
        servers: dict[str, Any] = {}
        if wanted:
            from headwise.server import grpc_server

            for name, port in wanted.items():
                server = grpc_server.make(self._settings, self._metrics)
                stack.push_async_callback(server.stop, 0)
                servers[name] = server, grpc_server.bind(server, self._settings, port, PROTOCOLS[name].option)
        return servers

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def heed() -> None:
            if self._told.is_set():
                os._exit(1)  # the workers notice that their sockets close, and end
            self._told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, heed)

    def _say_where(self, engine: Engine, listener: socket.socket, servers: dict[str, Any]) -> None:
        settings = self._settings
        for served in engine.models():
            version = Sentence("" if served.version == "1" else ", version {version}").format(version=served.version)
            task, platform = served.description.task, served.description.platform
            about = {"name": served.name, "version": version, "task": task, "platform": platform}
            self._say(said("{name}{version}: {task}, {platform}", **about))
        scheme = "http" if settings.tls_cert is None else "https"
        port = listener.getsockname()[1]
        where = f"{scheme}://{address(settings.host, port)}"
        self._say(said("HTTP: {where} (page: /docs)", where=where))
        for name, (_, bound) in servers.items():
            where = address(settings.host, bound)
            self._say(said("{protocol} over gRPC: {where}", protocol=PROTOCOLS[name].title, where=where))
        if not is_local(settings.host) and settings.token is None:
            told = Sentence(
                "warning: anyone who reaches {host} can use, load and unload models. Set --token-file, or leave "
                "--host out"
            )
            self._say(said(told.format(host=settings.host)))
        if not is_local(settings.host) and settings.token is not None and settings.tls_cert is None:
            self._say(said("warning: without --tls-cert and --tls-key, the token and all texts are sent unencrypted"))
        self._say(said("Ready. Ctrl-C finishes the accepted requests and stops."))


@contextlib.asynccontextmanager
async def _pool(models: Mapping[str, Path], settings: Settings) -> AsyncIterator[Pool]:
    from headwise.server.pool.pool import Pool

    pool = Pool(settings)
    await pool.start(models)  # leaves no process behind if it fails
    try:
        yield pool
    finally:
        await pool.stop()


def _http_server(app: Any, settings: Settings) -> uvicorn.Server:
    import uvicorn

    from headwise.server.connections import protocol

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield  # the process handles signals itself

    return Server(
        uvicorn.Config(
            app,
            http=protocol(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
    )


def _event_loop() -> asyncio.AbstractEventLoop:
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
