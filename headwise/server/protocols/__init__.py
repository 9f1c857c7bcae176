"""The protocols of other systems' clients: `PROTOCOLS`, the single list from which routes, ports and texts are made.

Another package adds a protocol by an entry point of the group "headwise.protocols": toy = "package.module:TOY", a
`Protocol`.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.plugins import Plugins

if TYPE_CHECKING:
    from fastapi import APIRouter
    from grpc import aio

    from headwise.server.engine import Engine


@dataclass(frozen=True)
class Protocol:
    """A protocol over HTTP, over gRPC, or both. Its functions are "module:function", imported when a server starts.

    Args:
        title: the name of the protocol that users see.
        http: a function: engine -> `APIRouter`, whose prefix begins all paths of the protocol.
        grpc: a function that is called with a gRPC server and an engine, and adds the services to the server.
        option: the option of `headwise serve` for the port of `grpc`.
        port: the default port of `grpc`.
        open: paths and gRPC methods that need no token: health probes.
    """

    title: str
    http: str | None = None
    grpc: str | None = None
    option: str = ""
    port: int = 0
    open: tuple[str, ...] = ()

    def router(self, engine: Engine) -> APIRouter | None:
        """Return the HTTP routes; None if the protocol has none."""
        router: APIRouter | None = None if self.http is None else pkgutil.resolve_name(self.http)(engine)
        return router

    def add(self, server: aio.Server, engine: Engine) -> None:
        """Add the services to a gRPC server that has not started yet."""
        assert self.grpc is not None
        pkgutil.resolve_name(self.grpc)(server, engine)


_OWN = {
    "open_inference": Protocol(
        "Open Inference Protocol",
        http="headwise.server.protocols.open_inference_http:router",
        grpc="headwise.server.protocols.open_inference_grpc:add",
        option="--grpc-port",
        port=8001,
        open=(
            "/v2/health/live",
            "/v2/health/ready",
            "/inference.GRPCInferenceService/ServerLive",
            "/inference.GRPCInferenceService/ServerReady",
        ),
    ),
    "embed": Protocol("text-embeddings-inference", http="headwise.server.protocols.text_embeddings:router"),
    "openai": Protocol("OpenAI embeddings", http="headwise.server.protocols.openai_embeddings:router"),
    "tensorflow": Protocol(
        "TensorFlow Serving",
        http="headwise.server.protocols.tensorflow_rest:router",
        grpc="headwise.server.protocols.tensorflow_grpc:add",
        option="--tensorflow-port",
        port=8500,
    ),
}
PROTOCOLS = Plugins("headwise.protocols", Protocol, _OWN)


def grpc_protocols() -> dict[str, Protocol]:
    """Return the protocols with gRPC services, by name."""
    return {name: protocol for name, protocol in PROTOCOLS.items() if protocol.grpc is not None}


__all__ = ["PROTOCOLS", "Protocol"]


def __dir__() -> list[str]:
    return __all__
