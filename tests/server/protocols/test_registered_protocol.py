"""A protocol made outside the package is seen wherever those of the package are: HTTP, ports, the command."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from fastapi import APIRouter, Response

from headwise.cli import serve
from headwise.errors import ArgumentError
from headwise.server.engine import Engine
from headwise.server.protocols import PROTOCOLS, Protocol
from headwise.server.protocols.routes import Route, json_of
from headwise.server.settings import Settings
from tests.server.plain_engine import Explaining, client

TOKEN = "a-token-of-32-characters-or-more"
COUNTING = Protocol(
    "Counting",
    http=f"{__name__}:router",
    grpc="its:services",  # none of these tests starts them
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


@pytest.fixture
def command() -> Iterator[Any]:
    """The command as it is where the protocol is registered before `headwise.cli` is imported."""
    yield importlib.reload(serve).serve
    PROTOCOLS.pop("counting")
    importlib.reload(serve)


def test_the_command_has_an_option_for_its_port(command: Any) -> None:
    (option,) = (each for each in command.params if each.name == "counting_port")
    assert (option.opts, option.default, option.help) == (["--counting-port"], 8700, "The port for gRPC: Counting.")
