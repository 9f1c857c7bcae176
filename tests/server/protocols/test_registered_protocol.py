"""A protocol made outside the package is seen wherever those of the package are: HTTP, gRPC, the command."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import grpc
import pytest
from fastapi import APIRouter, Response

from headwise.cli import serve
from headwise.errors import ArgumentError
from headwise.server import run
from headwise.server.engine import Engine
from headwise.server.pool.statistics import Statistics
from headwise.server.protocols import PROTOCOLS, Protocol
from headwise.server.protocols.grpc_service import Method, service
from headwise.server.protocols.routes import Route, json_of
from headwise.server.protocols.sdk import messages
from headwise.server.settings import Settings
from tests.server.plain_engine import Explaining, client, logged

TOKEN = "a-token-of-32-characters-or-more"
COUNTING = Protocol(
    "Counting",
    http=f"{__name__}:router",
    grpc=f"{__name__}:add",
    option="--counting-port",
    port=8700,
    open=("/count/well", "/toy.Counting/Well"),
)


def router(engine: Engine) -> APIRouter:
    """GET /count/models: their number."""
    routes = APIRouter(prefix="/count", route_class=Route)

    @routes.get("/models", summary="How many models there are")
    async def models() -> Response:
        return json_of(len(engine.models()))

    @routes.get("/well")
    async def well() -> Response:
        return json_of(engine.live)

    return routes


def add(server: grpc.aio.Server, engine: Engine) -> None:
    """toy.Counting/Models and /Well, with messages that are there already."""

    async def models(request: Any, context: Any) -> Any:
        return messages.ServerMetadataResponse(name=str(len(engine.models())))

    methods = {name: Method(messages.ServerMetadataRequest, models) for name in ("Models", "Well")}
    server.add_generic_rpc_handlers((service("toy.Counting", methods),))


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "counting", EntryPoint("counting", f"{__name__}:COUNTING", PROTOCOLS.group))


def test_its_routes_are_answered_listed_and_described() -> None:
    asking = client(Settings(token=TOKEN), Explaining())
    assert asking.get("/count/models").status_code == 401
    assert asking.get("/count/well").json() is True
    asking.headers["Authorization"] = f"Bearer {TOKEN}"
    assert asking.get("/count/models").json() == 5
    assert asking.post("/count/models").headers["allow"] == "GET"
    assert asking.get("/").json()["routes"]["counting"] == "http://127.0.0.1/count"
    operation = asking.get("/openapi.json").json()["paths"]["/count/models"]["get"]
    assert (operation["tags"], operation["summary"]) == (["Counting"], "How many models there are")
    assert operation["responses"]["401"] == {"$ref": "#/components/responses/Error401"}


def test_it_has_a_port_whose_name_stands_in_errors() -> None:
    assert Settings().ports == {"open_inference": 8001, "tensorflow": 8500, "counting": 8700}
    with pytest.raises(ArgumentError, match=r"^--counting-port and --grpc-port must differ. Received: 8001 for both$"):
        Settings(ports={"counting": 8001})


def test_the_server_starts_its_services_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    asking: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def pool(models: Any, settings: Settings) -> AsyncIterator[Engine]:
        engine = Explaining()
        engine.statistics = Statistics()
        yield engine

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("Ready"):
            asking.append(asyncio.ensure_future(ask()))

    async def ask() -> None:
        (address,) = (line.partition(": ")[2] for line in said if line.startswith("Counting over gRPC: "))
        request = messages.ServerMetadataRequest()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                models, well = (
                    channel.unary_unary(
                        f"/toy.Counting/{name}",
                        type(request).SerializeToString,
                        messages.ServerMetadataResponse.FromString,
                    )
                    for name in ("Models", "Well")
                )
                assert (await well(request)).name == "5"
                with pytest.raises(grpc.aio.AioRpcError, match="token is missing"):
                    await models(request)
                assert (await models(request, metadata=(("authorization", f"Bearer {TOKEN}"),))).name == "5"
        finally:
            process._told.set()

    monkeypatch.setattr(run, "_pool", pool)
    ports = {"counting": 0, "open_inference": None, "tensorflow": None}
    process = run._Process({}, Settings(http_port=0, ports=ports, token=TOKEN, drain=1), say, False)
    with logged():
        asyncio.run(process.run())
    asking[0].result()


@pytest.fixture
def command() -> Iterator[Any]:
    """The command as it is where the protocol is registered before `headwise.cli` is imported."""
    yield importlib.reload(serve).serve
    PROTOCOLS.pop("counting")
    importlib.reload(serve)


def test_the_command_has_an_option_for_its_port(command: Any) -> None:
    (option,) = (each for each in command.params if each.name == "counting_port")
    assert (option.opts, option.default, option.help) == (["--counting-port"], 8700, "The port for gRPC: Counting.")
