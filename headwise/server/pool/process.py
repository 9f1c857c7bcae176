"""`Worker`: a worker process as seen by the pool: its current work, its loaded models, and whether it is alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from headwise.errors import RequestRefused
from headwise.server.interface import Description
from headwise.server.pool.messages import LENGTH, Message, pack
from headwise.server.pool.rows import Batch, Stream

# The module search path is passed in the environment, to keep the command line of the process short.
_BOOT = (
    "import os, sys; sys.path[:] = os.environ.pop('HEADWISE_WORKER_PATH').split(os.pathsep); "
    "from headwise.server.pool.worker import main; main()"
)
_PATIENCE = 5.0  # seconds in which a process must end by itself


class Worker(asyncio.Protocol):
    """A worker process and the socket to it. All methods must be called in one event loop.

    Args:
        received: called with the worker and each message that is not about loading a model.
        gone: called once when the process or its end of the socket has closed; `why` then holds the reason.
    """

    def __init__(self, received: Callable[[Worker, Message], None], gone: Callable[[Worker], None]) -> None:
        self._received, self._gone = received, gone
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loads: dict[int, asyncio.Future[Description]] = {}
        self.batch: Batch | None = None  # the batch that it is computing
        self.joined: dict[int, Batch] = {}  # texts that it is writing side by side, each a batch of one row
        self.streams: dict[int, Stream] = {}
        self.loaded: set[int] = set()  # keys of models
        self.alive = False
        self.up = False  # whether it has reported that it is running
        self.served = False  # whether it has ever had every model loaded
        self.ended = asyncio.Event()
        self.heard = self._loop.time()  # when it last sent a message or got work
        self.why = ""  # the reason, if the pool ended it

    async def start(self, threads: int, setup: Message) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        if os.name != "posix":
            raise OSError("worker processes must inherit sockets, which only Linux and macOS support")
        ours, theirs = socket.socketpair()
        # Libraries read these when they are imported. RAYON is used by tokenizers.
        number = str(threads)
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(variables, number)}
        # Threads of OpenMP spin while they wait for the next operator, by default for milliseconds after the last one,
        # and on a busy machine they block the threads for which they wait: beside other work a sentence took 3 times as
        # long.
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault("GOMP_SPINCOUNT", "4000")
        environment["HEADWISE_WORKER_PATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # keep prints of libraries out of the server's standard output
                    env=environment,
                    start_new_session=True,  # keeps Ctrl-C away even before the process ignores it
                )
            except OSError:
                ours.close()
                raise
        self.pid = self._process.pid
        self.alive = True
        try:
            await self._loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            self._process.kill()
            self._process.wait()
            raise
        self.send(*setup)

    # Messages

    def send(self, *message: Any) -> None:
        """Send a message. Raises the errors of pickle."""
        self._transport.write(pack(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._buffer += data
        while (end := self._find_end()) is not None:
            try:
                message = pickle.loads(self._buffer[LENGTH.size : end])
            except Exception as error:
                self.kill(f"its message cannot be read: {type(error).__name__}: {error}")
                return
            del self._buffer[:end]
            self._handle(message)

    def _find_end(self) -> int | None:
        if len(self._buffer) < LENGTH.size:
            return None
        end = LENGTH.size + int(LENGTH.unpack_from(self._buffer)[0])
        return end if len(self._buffer) >= end else None

    def _handle(self, message: Message) -> None:
        if message[0] == "up":
            self.up = True
            return
        if message[0] not in ("loaded", "refused"):
            self._received(self, message)
            return
        kind, key, said = message
        waiting = self._loads.pop(key, None)
        if waiting is None or waiting.done():
            return
        if kind == "loaded":
            self.loaded.add(key)
            waiting.set_result(said)
        else:
            waiting.set_exception(RequestRefused("bad_input", said))

    # Models

    def load(self, key: int, path: Path) -> asyncio.Future[Description]:
        """Load a model. Returns a future, whose result is the model's description as soon as the model is loaded.

        Raises:
            RequestRefused: "bad_input": the model cannot be loaded; "unavailable": the process ended meanwhile.
        """
        loading: asyncio.Future[Description] = self._loop.create_future()
        self._loads[key] = loading
        self.send("load", key, path)
        return loading

    def loads(self, key: int) -> bool:
        """Return whether this model is being loaded."""
        return key in self._loads

    def drop(self, key: int) -> None:
        """Unload a model that has no requests left, or that is still being loaded."""
        self.loaded.discard(key)
        if (loading := self._loads.pop(key, None)) is not None:
            loading.cancel()
        if self.alive:
            self.send("drop", key)

    # The end

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        self.loaded.clear()
        self._buffer.clear()
        self._gone(self)
        self._reaping = self._loop.create_task(self._reap())

    async def _reap(self) -> None:
        try:
            for _ in range(int(_PATIENCE / 0.02)):
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.02)  # its socket is closed, so it ends soon
            else:
                self._process.kill()
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self.why = self.why or _how(self._process.returncode)
            self._end_loads()
            self.ended.set()

    def _end_loads(self) -> None:
        loads, self._loads = self._loads, {}
        for loading in loads.values():
            if not loading.done():
                said = f"the worker process ended while it loaded the model: {self.why}"
                loading.set_exception(RequestRefused("unavailable", said))

    def end(self) -> None:
        """Close the socket, which makes the process end by itself. `ended` is set when it has ended."""
        self._transport.close()

    def kill(self, why: str) -> None:
        """Kill a process that misbehaves."""
        self.why = why
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._transport.abort()


def _how(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ", possibly because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"it was ended by {name}{memory}"
