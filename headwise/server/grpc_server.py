"""The gRPC servers, with the same logs, metrics and access control as the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from headwise.errors import FileError
from headwise.server.auth import is_open, is_token
from headwise.server.listening import address, check_free
from headwise.server.metrics import Metrics
from headwise.server.observing import Noted, current
from headwise.server.settings import Settings
from headwise.server.watching import log_request, request_id


def make(settings: Settings, metrics: Metrics) -> grpc.aio.Server:
    """Make a gRPC server, which has no services and no port yet."""
    return grpc.aio.server(
        interceptors=[Watching(metrics, settings.token)],
        options=[
            ("grpc.max_receive_message_length", settings.max_body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 16 * 2**10),
            ("grpc.so_reuseport", 0),  # otherwise two servers could share a port unnoticed
        ],
    )


def bind(server: grpc.aio.Server, settings: Settings, port: int, option: str) -> int:
    """Bind a server to a port (0 = any free port) and return the port. Raises FileError like `listening.bind`."""
    check_free(settings.host, port, option)
    where = address(settings.host, port)
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            return server.add_insecure_port(where)
        pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
        return server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        raise FileError(
            f"{option} {port}: the port cannot be used. Choose another one, or 0 for any free port"
        ) from error


class Watching(grpc.aio.ServerInterceptor):
    """gRPC interceptor: checks the token of each call, and writes the call to the log and the metrics.

    The services here are either unary (one message in, one out) or bidirectional streams.
    """

    def __init__(self, metrics: Metrics, token: str | None) -> None:
        self._metrics, self._token = metrics, token

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC reports it
            return None
        method = handler_call_details.method
        metadata = {str(key): value for key, value in handler_call_details.invocation_metadata or ()}
        given = metadata.get("authorization")
        known = is_open(method) or is_token(self._token, given if isinstance(given, str) else None)
        wanted = metadata.get("x-request-id")
        call = _Call(self._metrics, method, request_id(wanted if isinstance(wanted, str) else None), known)
        formats = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(call.streaming(handler.stream_stream), *formats)
        return grpc.unary_unary_rpc_method_handler(call.single(handler.unary_unary), *formats)


class _Call:
    def __init__(self, metrics: Metrics, method: str, id: str, known: bool) -> None:
        self._metrics, self._method, self._known = metrics, method, known
        self._noted = Noted(id)

    def single(self, inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Any) -> Any:
            async with self._watched(context):
                return await inner(request, context)

        return call

    def streaming(self, inner: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._watched(context):
                async for response in inner(request, context):
                    yield response

        return call

    @contextlib.asynccontextmanager
    async def _watched(self, context: Any) -> AsyncIterator[None]:
        current.set(self._noted)  # context variable: set for the task of this call only
        self._metrics.begin("grpc")
        began, code = time.perf_counter(), "OK"
        try:
            if not self._known:
                says = "the server's token is missing or wrong: expected the metadata authorization: Bearer TOKEN"
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, says)
            yield
        except BaseException as error:
            code = _code(error, context)
            raise
        finally:
            seconds = time.perf_counter() - began
            self._metrics.end("grpc", self._method, code, seconds)
            log_request(self._noted, "grpc", self._method, code, seconds)


def _code(error: BaseException, context: Any) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    code = context.code()
    if isinstance(code, int):
        code = next((each for each in grpc.StatusCode if each.value[0] == code), None)
    return "UNKNOWN" if code is None or code is grpc.StatusCode.OK else str(code.name)
