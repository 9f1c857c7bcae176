"""A gRPC service from functions: bytes that are no message, and errors, become the codes that clients know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headwise.errors import RequestRefused
from headwise.server.protocols.errors import abort

# What a method is given: the message, and the call.
Unary = Callable[[Any, Any], Awaitable[Any]]
Streaming = Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]


@dataclass(frozen=True)
class Method:
    """A method of a service.

    Args:
        request: the class of its messages.
        function: gives the answer, a message; or, where `streams`, takes and gives an iterator of messages.
    """

    request: Any
    function: Any
    streams: bool = False


def service(name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    """What `grpc.aio.Server.add_generic_rpc_handlers` takes.

    Messages are parsed here and not by gRPC, which would call bytes that are none an unknown fault of the server, and
    log them.
    """
    handlers = {key: _streaming(method) if method.streams else _unary(method) for key, method in methods.items()}
    return grpc.method_handlers_generic_handler(name, handlers)


def _unary(method: Method) -> grpc.RpcMethodHandler:
    async def call(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            answer = await method.function(_message(method, request), context)
            serialized: bytes = answer.SerializeToString()
            return serialized
        except Exception as error:
            await abort(context, error)
            raise

    return grpc.unary_unary_rpc_method_handler(call)


def _streaming(method: Method) -> grpc.RpcMethodHandler:
    async def call(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        async def messages() -> AsyncIterator[Any]:
            async for request in requests:
                yield _message(method, request)

        try:
            async for answer in method.function(messages(), context):
                yield answer.SerializeToString()
        except Exception as error:
            await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(call)


def _message(method: Method, request: bytes) -> Any:
    try:
        return method.request.FromString(request)
    except DecodeError as error:
        raise RequestRefused(
            "bad_input", f"the bytes are no {method.request.DESCRIPTOR.name}, or its text is not UTF-8"
        ) from error
