"""`Settings`: the options of `headwise serve`, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from headwise.errors import ArgumentError
from headwise.server.protocols import grpc_protocols

Backend = Literal["auto", "torch", "onnx"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True)
class Settings:
    """How a server runs its models, and its limits.

    Args:
        workers: the number of processes that run models; each loads all models.
        threads: the number of threads of each worker; None = the cores of this machine divided by `workers`.
        backend: "torch", "onnx", or "auto" = ONNX Runtime for ONNX exports, otherwise PyTorch.
        precision: "fp32", "bf16", "fp16" or "int8". A backend refuses a precision that it does not support.
        max_batch: the largest number of rows in one batch of a model.
        max_delay_ms: how long a row may wait for others to share its batch. It waits only while more rows are
            expected, so a single client never waits.
        max_queue: the largest number of rows in the queue of one model. Further requests are refused as "busy".
        max_tokens: the largest number of tokens in one row; None = no limit. Checked in the worker, for each row.
        max_body: the largest request body, in bytes.
        timeout: seconds from the acceptance of a request to its answer; for a stream, to its last piece.
        drain: seconds for accepted requests to finish when the server is stopped.
        host: the address to listen on; "127.0.0.1" accepts connections from this machine only.
        http_port: the port of all protocols over HTTP. 0 = any free port, here and for the other ports.
        ports: name of a protocol in `PROTOCOLS` -> its gRPC port; None = off. A missing protocol has its default port.
        token: the token that requests must carry ("Authorization: Bearer …"); None = no token.
        tls_cert, tls_key: PEM files, both or neither.

    Raises:
        ArgumentError: a value is invalid; the message names the option of `headwise serve`.
    """

    workers: int = 1
    threads: int | None = None
    backend: Backend = "auto"
    precision: Precision = "fp32"
    max_batch: int = 32
    max_delay_ms: float = 2.0
    max_queue: int = 1024
    max_tokens: int | None = 4096
    max_body: int = 16 * 2**20
    timeout: float = 60.0
    drain: float = 30.0
    host: str = "127.0.0.1"
    http_port: int = 8000
    ports: Mapping[str, int | None] = field(default_factory=dict, hash=False)
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("workers", self.workers),
            ("threads", self.threads),
            ("max_batch", self.max_batch),
            ("max_queue", self.max_queue),
            ("max_tokens", self.max_tokens),
            ("max_body", self.max_body),
        ):
            if value is not None and value < 1:
                raise _wrong(name, "be at least 1", value)
        # "not (… <= …)", so that NaN is refused too
        if not 0 <= self.max_delay_ms <= 10_000:
            raise _wrong("max_delay_ms", "be from 0 to 10000", self.max_delay_ms)
        if not 0 < self.timeout <= 86_400:
            raise _wrong("timeout", "be more than 0 and at most 86400 seconds", self.timeout)
        if not 0 <= self.drain <= 86_400:
            raise _wrong("drain", "be from 0 to 86400 seconds", self.drain)
        for name, word, words in (("backend", self.backend, Backend), ("precision", self.precision, Precision)):
            if word not in get_args(words):
                raise _wrong(name, f"be one of {', '.join(get_args(words))}", word)
        self._check_network()

    def _check_network(self) -> None:
        known = grpc_protocols()
        if unknown := set(self.ports) - set(known):
            raise ArgumentError(
                f"ports: expected names of {', '.join(known)}. Received: {', '.join(sorted(map(repr, unknown)))}"
            )
        object.__setattr__(self, "ports", {name: protocol.port for name, protocol in known.items()} | dict(self.ports))
        taken: dict[int, str] = {}
        options = {known[name].option: port for name, port in self.ports.items()}
        for name, port in {"--port": self.http_port, **options}.items():
            if port is None:
                continue
            if not 0 <= port <= 65_535:
                raise ArgumentError(f"{name} must be from 0 to 65535. Received: {name}={port}")
            if port and port in taken:
                raise ArgumentError(f"{name} and {taken[port]} must differ. Received: {port} for both")
            taken[port] = name
        if not self.host:
            raise ArgumentError("--host must be an address to listen on, such as 127.0.0.1. Received: --host=''")
        if self.token is not None and (not self.token.isascii() or self.token.split() != [self.token]):
            raise ArgumentError("token must be printable ASCII without spaces, and not empty")  # never shown
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_key is None else ("--tls-key", "--tls-cert")
            raise ArgumentError(f"TLS needs a certificate and its key. Received: {given} without {missing}")
        for name, path in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if path is not None and not path.is_file():
                raise ArgumentError(f"{name}: the file {path} does not exist")

    @property
    def worker_threads(self) -> int:
        """The number of threads of each worker."""
        return self.threads or max(1, _cores() // self.workers)

    def count_threads(self, busy: int) -> int:
        """Return the number of threads of each of `busy` busy workers: they also use the cores of the idle workers."""
        return self.threads or max(self.worker_threads, _cores() // max(1, min(busy, self.workers)))


def _wrong(name: str, must: str, value: object) -> ArgumentError:
    option = f"--{name.replace('_', '-')}"
    return ArgumentError(f"{option} must {must}. Received: {option}={value}")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
