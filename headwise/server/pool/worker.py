"""The worker process, which runs models. It starts fast: what a model needs is imported when the model is loaded.

It has three threads. One reads the socket, and ends the process when the socket closes, so a worker never outlives its
pool. One loads models, while the loaded ones keep answering. The main thread calls the models; between two batches it
takes one step of each stream, and one step of all rows that are answered side by side, so that long texts do not delay
short answers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.interface import Interface
from headwise.server.logs import raised_at
from headwise.server.pool.answering import answer_all, ask_model, failure, refusal
from headwise.server.pool.joined import Joined
from headwise.server.pool.messages import LENGTH, Message, pack
from headwise.tasks.columns import Row


def main() -> None:
    """Run as `python -c … DESCRIPTOR`: the descriptor of a connected socket. Its first message holds the options."""
    # Ctrl-C in a terminal reaches the whole process group, and some supervisors send SIGTERM to every process:
    # the pool decides when a worker ends, after it has answered.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # child processes of a model must not keep the socket open
    pipe = socket.socket(fileno=descriptor)
    with pipe.makefile("rb") as reading:
        worker = _Worker(pipe, *_read(reading))
        try:
            worker.run(reading)
        except BaseException as error:  # Python would print its message, which may quote what a client sent
            with contextlib.suppress(OSError):  # the pool has ended
                worker.tell("the worker cannot continue", error)
            os._exit(1)


class _Worker:
    def __init__(
        self, pipe: socket.socket, opener: str, options: dict[str, Any], max_tokens: int | None, most: int
    ) -> None:
        self._pipe, self._writing = pipe, threading.Lock()
        self._opener, self._options, self._max_tokens = opener, options, max_tokens
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._models: dict[int, Interface[Any]] = {}
        self._streams: dict[int, Iterator[str]] = {}
        self._joined = Joined(most, max_tokens, self._give_one, self.tell)

    def run(self, reading: BinaryIO) -> None:
        """Serve messages. Never returns: the reading thread ends the process."""
        forwarding = logging.Handler()
        forwarding.emit = self._forward  # type: ignore[method-assign]
        logging.getLogger("headwise").addHandler(forwarding)
        self._send("up")
        threading.Thread(target=self._receive, args=(reading,), name="receive", daemon=True).start()
        threading.Thread(target=self._load_all, name="load", daemon=True).start()
        while True:
            self._handle_next()
            for number in list(self._streams):
                self._step(number)
            self._joined.step()

    def _handle_next(self) -> None:
        """Handle the next message, and "join" messages after it. Wait for messages only if no row is in progress."""
        joins = True
        block = not (self._streams or len(self._joined))
        while joins:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return
            self._handle(message)
            joins, block = message[0] in ("join", "cancel"), False
            del message  # its rows may be large

    def _receive(self, reading: BinaryIO) -> None:
        try:
            while True:
                message = _read(reading)
                (self._loads if message[0] in ("load", "drop") else self._inbox).put(message)
        except (EOFError, OSError):
            os._exit(0)
        except BaseException as error:
            self.tell("a message of the pool cannot be read", error)
            os._exit(1)

    def _send(self, *message: Any) -> None:
        packed = pack(message)
        with self._writing:
            self._pipe.sendall(packed)

    def tell(self, what: str, error: BaseException) -> None:
        """Log an error without its message, which may quote what a client sent."""
        self._send("log", logging.ERROR, what, {"raised": type(error).__qualname__, "at": raised_at(error)})

    def _forward(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # the line is lost
            self._send("log", record.levelno, record.getMessage(), getattr(record, "fields", {}))

    # Models

    def _load_all(self) -> None:
        while True:
            kind, key, *rest = self._loads.get()
            if kind == "load":
                # In a temporary thread. OpenMP keeps a thread pool per computing thread; once these threads outnumber
                # the cores, they sleep instead of spinning: one sentence then takes twice as long.
                loading = threading.Thread(target=self._load, args=(key, rest[0]), name="load one", daemon=True)
                loading.start()
                loading.join()
            else:
                self._models.pop(key, None)
                gc.collect()

    def _load(self, key: int, path: Path) -> None:
        with contextlib.suppress(OSError):  # the pool has ended
            try:
                module, _, name = self._opener.partition(":")
                opened: Interface[Any] = getattr(importlib.import_module(module), name)(path, **self._options)
                description = opened.description
                if description.example is not None:
                    [answer] = opened.answer([opened.read(description.example)])  # warm-up
                    if isinstance(answer, HeadwiseError):
                        raise answer
                gc.collect()
                self._models[key] = opened
                self._send("loaded", key, description)
            except HeadwiseError as error:
                self._send("refused", key, _line(str(error)))
            except BaseException as error:  # including SystemExit of a module that calls sys.exit
                self.tell(f"{path} cannot be loaded", error)
                self._send("refused", key, f"{path} cannot be loaded: {type(error).__name__}: {_line(str(error))}")

    # Requests

    def _handle(self, message: Message) -> None:
        kind, number, *rest = message
        if kind == "cancel":
            if not self._joined.cancel(number):
                self._end(number)
            return
        key, given, *more = rest
        model, begun = self._models[key], time.perf_counter()
        if more:
            model.threads = more[0]
        if kind == "batch":
            answers = answer_all(model, given, self._max_tokens, self.tell)
            self._give("answers", number, time.perf_counter() - begun, answers)
        elif kind == "join":
            self._joined.add(number, key, model, given)
        elif kind == "stream":
            self._begin(number, model, given)
        else:
            asks: dict[str, Callable[[Any], Any]] = {
                "page": model.page,
                "explain": model.explain,
                "attend": lambda asked: model.attend(asked, more[1]),
            }
            value = ask_model(asks[kind], model, given, self._max_tokens, self.tell)
            self._give("value", number, time.perf_counter() - begun, value)

    def _give(self, kind: str, number: int, seconds: float, given: Any) -> None:
        try:
            self._send(kind, number, seconds, given)
        except OSError:
            raise
        except Exception as error:  # pickling failed
            self.tell("a model's answer cannot be sent", error)
            failed = RequestRefused("failed", "the model's answer cannot be sent; see the server's log")
            self._send(kind, number, seconds, [failed] * len(given) if kind == "answers" else failed)

    def _give_one(self, number: int, seconds: float, answer: Row | RequestRefused) -> None:
        self._give("answers", number, seconds, [answer])

    def _begin(self, number: int, model: Interface[Any], row: Row) -> None:
        begun = ask_model(lambda asked: iter(model.stream(asked)), model, row, self._max_tokens, self.tell)
        if isinstance(begun, RequestRefused):
            self._send("end", number, begun)
        else:
            self._streams[number] = begun

    def _step(self, number: int) -> None:
        stream = self._streams[number]
        try:
            self._send("piece", number, next(stream))
        except StopIteration:
            self._end(number)
        except HeadwiseError as error:
            self._end(number, refusal(error))
        except Exception as error:
            self.tell("a stream ended early", error)
            self._end(number, failure())

    def _end(self, number: int, error: RequestRefused | None = None) -> None:
        """End a stream that is finished or no longer read. Does nothing if it has ended already."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        try:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        except Exception as cause:
            self.tell("a stream could not be closed", cause)
        self._send("end", number, error)


def _read(reading: BinaryIO) -> Any:
    return pickle.loads(_exactly(reading, LENGTH.unpack(_exactly(reading, LENGTH.size))[0]))


def _exactly(reading: BinaryIO, size: int) -> bytes:
    found = reading.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
