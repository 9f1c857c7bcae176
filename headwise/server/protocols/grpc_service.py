"""Makes a gRPC service out of Python functions. Invalid messages and errors become proper gRPC status codes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headwise.server.protocols.errors import abort, bad_input


@dataclass(frozen=True)
class Method:
    """A method of a service.

    Args:
        request: the class of the messages that it receives.
        function: takes a message and the context of the call, and returns the answer, a message; if `streams`, takes
            and returns an iterator of messages.
    """

    request: Any
    function: Any
    streams: bool = False


def service(name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    """Make the handler of a service, for `grpc.aio.Server.add_generic_rpc_handlers`.

    Messages are parsed here instead of by gRPC, which would report invalid bytes as an unknown error of the server and
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
        raise bad_input(f"the bytes are not a valid {method.request.DESCRIPTOR.name} with UTF-8 text") from error
