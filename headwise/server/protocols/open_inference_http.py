"""The Open Inference Protocol over HTTP: `/v2/…`."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headwise.server.engine import Engine, Served
from headwise.server.protocols import open_inference as oip
from headwise.server.protocols.answers import answers
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.routes import Route, add_of_model, checked, json_body, json_of, parsed
from headwise.server.protocols.sdk import InferenceError, InferInput, InferResponse, RequestedOutput, models

JSON_LENGTH = "Inference-Header-Content-Length"  # length of the JSON, if binary data follow it


# While one request is parsed, all others wait: it has few tensors, and is refused at the first mistake in a list.
MOST = 256


def _check(parameters: dict[str, Any]) -> dict[str, Any]:
    if not all(isinstance(value, str | int | float) for value in parameters.values()):
        raise ValueError("expected texts, numbers, true or false")
    return parameters


Parameters = Annotated[dict[str, Any], AfterValidator(_check)]


class Tensor(models.RequestInput):
    """One input tensor with values for all rows, in `data` or as bytes after the JSON."""

    shape: Annotated[list[int], Field(fail_fast=True)]
    parameters: Parameters | None = None
    data: list[Any] | None = None


class Output(models.RequestOutput):
    """One requested output."""

    parameters: Parameters | None = None


class Infer(models.InferenceRequest):
    """The body of an inference request: one tensor per input, and optionally the requested outputs (default: all)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a text"]}]}
        }
    )

    parameters: Parameters | None = None
    inputs: Annotated[list[Tensor], Field(fail_fast=True, max_length=MOST)]
    outputs: Annotated[list[Output], Field(fail_fast=True, max_length=MOST)] | None = None


class Wish(BaseModel):
    """The body of a request to Triton's model repository: to list, load or unload models."""

    ready: bool = False
    parameters: dict[str, Any] = {}


_WISH = json_body(Wish, required=False)


def router(engine: Engine) -> APIRouter:
    """Return the routes of the protocol, for an application with `Limits` around it."""
    routes = APIRouter(prefix="/v2", route_class=Route)

    @routes.get("", response_model=models.ServerMetadataResponse, summary="About the server")
    async def server_metadata() -> Response:
        return json_of({"name": oip.NAME, "version": oip.VERSION, "extensions": oip.HTTP_EXTENSIONS})

    @routes.get("/health/live", response_model=models.ServerLiveResponse, summary="Whether the process works")
    async def server_live() -> Response:
        return json_of({"live": engine.live}, 200 if engine.live else 503)

    @routes.get("/health/ready", response_model=models.ServerReadyResponse, summary="Whether every model can answer")
    async def server_ready() -> Response:
        return json_of({"ready": engine.ready}, 200 if engine.ready else 503)

    @routes.get("/models", response_model=models.ListModelsResponse, summary="The names of the models")
    async def list_models() -> Response:
        return json_of({"models": sorted({served.name for served in engine.models()})})

    async def model_metadata(_: Request, name: str, version: str | None) -> Response:
        return json_of(oip.metadata(engine, engine.find(name, version)))

    async def model_ready(_: Request, name: str, version: str | None) -> Response:
        served = engine.find(name, version)
        return json_of({"name": served.name, "ready": served.ready}, 200 if served.ready else 503)

    async def model_config(_: Request, name: str, version: str | None) -> Response:
        return json_of(oip.config(engine.find(name, version)))

    async def infer(request: Request, name: str, version: str | None) -> Response:
        return await _infer(engine, request, engine.find(name, version))

    add_of_model(routes, "", model_metadata, "About a model", response_model=models.ModelMetadataResponse)
    add_of_model(routes, "/ready", model_ready, "Whether a model can answer", response_model=models.ModelReadyResponse)
    add_of_model(routes, "/config", model_config, "Triton's configuration of a model")
    add_of_model(
        routes,
        "/infer",
        infer,
        "Infer: run a model on tensors",
        methods=["POST"],
        response_model=models.InferenceResponse,
        openapi_extra={"requestBody": json_body(Infer)},
    )

    @routes.post("/repository/index", summary="The models and their states", openapi_extra={"requestBody": _WISH})
    async def repository_index(request: Request) -> Response:
        return json_of(oip.index(engine, (await _wish(request)).ready))

    @routes.post(
        "/repository/models/{name}/load", summary="Load or reload a model", openapi_extra={"requestBody": _WISH}
    )
    async def repository_load(request: Request, name: str) -> Response:
        oip.check_load((await _wish(request)).parameters)
        await engine.load(name)
        return json_of({"name": name, "load": True})

    @routes.post("/repository/models/{name}/unload", summary="Unload a model", openapi_extra={"requestBody": _WISH})
    async def repository_unload(request: Request, name: str) -> Response:
        await _wish(request)
        await engine.unload(name)
        return json_of({"name": name, "unload": True})

    return routes


async def _infer(engine: Engine, request: Request, served: Served) -> Response:
    asked, inputs = _request(await request.body(), request.headers.get(JSON_LENGTH))
    parameters = asked.parameters or {}
    oip.check_outputs(served, [(output.name, output.parameters or {}) for output in asked.outputs or []])
    wanted = {output.name: output.parameters or {} for output in asked.outputs or []}
    rows = oip.request_rows(served, inputs)
    answered = await answers(engine, served, rows, timeout=oip.read_timeout(parameters))

    outputs = oip.outputs(served, answered, list(wanted))
    default = parameters.get("binary_data_output", False)
    binary = [
        RequestedOutput(o.name, {"binary_data": wanted.get(o.name, {}).get("binary_data", default) is True})
        for o in outputs
    ]
    answer = InferResponse(
        asked.id or str(uuid.uuid4()), served.name, outputs, served.version, requested_outputs=binary
    )
    try:
        content, json_length = answer.to_rest()
    except InferenceError as error:
        raise bad_input("an output is not text. Request it as binary data") from error
    if json_length is None:
        return json_of(content)
    return Response(content, media_type="application/octet-stream", headers={JSON_LENGTH: str(json_length)})


def _request(whole: bytes, header: str | None) -> tuple[Infer, list[InferInput]]:
    """Parse the body of a request. Returns (the request, its inputs with their data).

    `header`: the length of the JSON part in bytes, if binary data follow it; otherwise None.
    """
    length = len(whole) if header is None else int(header) if header.isdecimal() and len(header) < 20 else -1
    if not 0 <= length <= len(whole):
        raise bad_input(f"{JSON_LENGTH}: expected 0 to {len(whole)} (the size of the body). Received: {piece(header)}")
    asked = checked(Infer, parsed(whole[:length]))
    inputs, start = [], length
    for given in asked.inputs:
        tensor = InferInput(given.name, given.shape, given.datatype, given.data, given.parameters or {})
        size = tensor.parameters.get("binary_data_size")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(whole) - start:
                raise bad_input(
                    f"input {piece(given.name)}: expected a binary_data_size of 0 to {len(whole) - start}, the number "
                    f"of bytes after the JSON. Received: {piece(size)}"
                )
            if given.data is not None:
                raise bad_input(f"input {piece(given.name)}: it has both data and a binary_data_size")
            tensor._raw_data = whole[start : start + size]
            start += size
        inputs.append(tensor)
    if start != len(whole):
        raise bad_input(f"{len(whole) - start} bytes after the JSON belong to no input")
    return asked, inputs


async def _wish(request: Request) -> Wish:
    whole = await request.body()
    wish: Wish = checked(Wish, parsed(whole)) if whole.strip() else Wish()
    return wish
