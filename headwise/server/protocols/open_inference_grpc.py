"""The Open Inference Protocol over gRPC: `inference.GRPCInferenceService`, with Triton's methods for its clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from headwise.server.engine import Engine, Served
from headwise.server.protocols import open_inference as oip
from headwise.server.protocols import proto
from headwise.server.protocols.answers import answers
from headwise.server.protocols.errors import bad_input, refusal
from headwise.server.protocols.grpc_service import Method, service
from headwise.server.protocols.sdk import (
    InferOutput,
    InferRequest,
    InferResponse,
    InvalidInput,
    messages,
)

SERVICE = "inference.GRPCInferenceService"

# Messages that Triton adds to the protocol or defines differently. On the wire, a nested message looks like bytes, and
# the SDK's messages belong to another descriptor pool, so `infer_response` is bytes here. An enum is a number.
_TRITON = proto.messages("""
    message ModelStreamInferResponse { string error_message = 1; bytes infer_response = 2; }

    message ModelInput { string name = 1; int32 data_type = 2; repeated int64 dims = 4; bool optional = 8; }
    message ModelOutput { string name = 1; int32 data_type = 2; repeated int64 dims = 3; }
    message ModelTransactionPolicy { bool decoupled = 1; }
    message ModelConfig {
        string name = 1; string platform = 2; int32 max_batch_size = 4;
        repeated ModelInput input = 5; repeated ModelOutput output = 6;
        string backend = 17; ModelTransactionPolicy model_transaction_policy = 19;
    }
    message ModelConfigRequest { string name = 1; string version = 2; }
    message ModelConfigResponse { ModelConfig config = 1; }

    message RepositoryIndexRequest { string repository_name = 1; bool ready = 2; }
    message ModelIndex { string name = 1; string version = 2; string state = 3; string reason = 4; }
    message RepositoryIndexResponse { repeated ModelIndex models = 1; }

    // KServe has the name of the model in the first field, Triton in the second.
    message Parameter { bool bool_param = 1; int64 int64_param = 2; string string_param = 3; bytes bytes_param = 4; }
    message RepositoryRequest { string first = 1; string second = 2; map<string, Parameter> parameters = 3; }
    message RepositoryResponse { string model_name = 1; bool done = 2; }
""")


def add(server: grpc.aio.Server, engine: Engine) -> None:
    """Add the service to a server that has not started yet."""
    server.add_generic_rpc_handlers((service(SERVICE, _methods(engine)),))


def _methods(engine: Engine) -> dict[str, Method]:
    async def server_live(request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=engine.live)

    async def server_ready(request: Any, context: Any) -> Any:
        return messages.ServerReadyResponse(ready=engine.ready)

    async def server_metadata(request: Any, context: Any) -> Any:
        return messages.ServerMetadataResponse(name=oip.NAME, version=oip.VERSION, extensions=oip.GRPC_EXTENSIONS)

    async def model_ready(request: Any, context: Any) -> Any:
        return messages.ModelReadyResponse(ready=oip.model_ready(engine, request.name, request.version or None))

    async def model_metadata(request: Any, context: Any) -> Any:
        return messages.ModelMetadataResponse(**oip.metadata(engine, _find(engine, request)))

    async def model_config(request: Any, context: Any) -> Any:
        config = oip.config(_find(engine, request))
        for tensor in config["input"] + config["output"]:
            tensor["data_type"] = oip.CONFIG_TYPES[tensor["data_type"]]
        return _TRITON["ModelConfigResponse"](config=config)

    async def model_infer(request: Any, context: Any) -> Any:
        return await _infer(engine, request)

    async def model_stream_infer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            try:
                async for response in _stream(engine, request):
                    yield _TRITON["ModelStreamInferResponse"](infer_response=response.SerializeToString())
            except Exception as error:  # only this request fails, not the rest of the stream
                empty = messages.ModelInferResponse(id=request.id, model_name=request.model_name)
                yield _TRITON["ModelStreamInferResponse"](
                    error_message=str(refusal(error)), infer_response=empty.SerializeToString()
                )

    async def repository_index(request: Any, context: Any) -> Any:
        return _TRITON["RepositoryIndexResponse"](models=oip.index(engine, request.ready))

    async def repository_load(request: Any, context: Any) -> Any:
        name = request.second or request.first
        oip.check_load(dict(request.parameters))
        await engine.load(name)
        return _TRITON["RepositoryResponse"](model_name=name, done=True)

    async def repository_unload(request: Any, context: Any) -> Any:
        name = request.second or request.first
        await engine.unload(name)
        return _TRITON["RepositoryResponse"](model_name=name, done=True)

    return {
        "ServerLive": Method(messages.ServerLiveRequest, server_live),
        "ServerReady": Method(messages.ServerReadyRequest, server_ready),
        "ServerMetadata": Method(messages.ServerMetadataRequest, server_metadata),
        "ModelReady": Method(messages.ModelReadyRequest, model_ready),
        "ModelMetadata": Method(messages.ModelMetadataRequest, model_metadata),
        "ModelConfig": Method(_TRITON["ModelConfigRequest"], model_config),
        "ModelInfer": Method(messages.ModelInferRequest, model_infer),
        "ModelStreamInfer": Method(messages.ModelInferRequest, model_stream_infer, streams=True),
        "RepositoryIndex": Method(_TRITON["RepositoryIndexRequest"], repository_index),
        "RepositoryModelLoad": Method(_TRITON["RepositoryRequest"], repository_load),
        "RepositoryModelUnload": Method(_TRITON["RepositoryRequest"], repository_unload),
    }


def _find(engine: Engine, request: Any) -> Served:
    return engine.find(request.name, request.version or None)


async def _infer(engine: Engine, request: Any) -> Any:
    served = engine.find(request.model_name, request.model_version or None)
    asked, names = _parsed(served, request)
    rows = oip.request_rows(served, asked.inputs)
    answered = await answers(engine, served, rows, timeout=oip.read_timeout(_parameters(request)))
    return _response(served, asked, oip.outputs(served, answered, names))


async def _stream(engine: Engine, request: Any) -> AsyncIterator[Any]:
    """Yield the responses to one request of a stream: one per piece of generated text, or a single one."""
    served = engine.find(request.model_name, request.model_version or None)
    last = _parameters(request).get("triton_enable_empty_final_response") is True
    if not served.description.streams:
        response = await _infer(engine, request)
        response.parameters["triton_final_response"].bool_param = True
        yield response
        return
    asked, _ = _parsed(served, request)
    rows = oip.request_rows(served, asked.inputs)
    if len(rows) != 1:
        raise bad_input(f"expected one row in each request of a stream. Received: {len(rows)} rows")
    written = served.description.written
    timeout = oip.read_timeout(_parameters(request))
    pieces = engine.stream(served.name, served.version, rows[0], timeout=timeout)
    async with contextlib.aclosing(pieces):  # type: ignore[type-var]  # all that there are, are generators
        async for piece in pieces:
            response = _response(served, asked, oip.outputs(served, [{written: piece}], [written]))
            response.parameters["triton_final_response"].bool_param = False
            yield response
    if last:
        response = messages.ModelInferResponse(id=request.id, model_name=served.name, model_version=served.version)
        response.parameters["triton_final_response"].bool_param = True
        yield response


def _parsed(served: Served, request: Any) -> tuple[InferRequest, list[str]]:
    """Parse a gRPC request. Returns (the request in the SDK's form, the names of the requested outputs)."""
    raw = len(request.raw_input_contents)
    if raw and raw != len(request.inputs):
        raise bad_input(f"{len(request.inputs)} inputs, but raw_input_contents of {raw}")
    if raw and any(given.HasField("contents") for given in request.inputs):
        raise bad_input("an input has both contents and raw_input_contents")
    try:
        asked = InferRequest.from_grpc(request)
    except InvalidInput as error:
        raise bad_input("an input has an unknown datatype") from error
    oip.check_outputs(served, [(output.name, dict(output.parameters)) for output in request.outputs])
    return asked, [output.name for output in request.outputs]


def _response(served: Served, asked: InferRequest, outputs: Sequence[InferOutput]) -> Any:
    """Make the gRPC response. Its tensors are raw bytes if the request's tensors are, or if an output is not text."""
    raw = asked.use_binary_outputs or any(column.binary for column in served.description.outputs)
    for output in outputs:
        output.set_data_from_numpy(output.data, binary_data=raw)
        output.parameters = None  # the binary size, which only HTTP needs
    return InferResponse(asked.id, served.name, list(outputs), served.version).to_grpc()


def _parameters(request: Any) -> dict[str, Any]:
    chosen = {key: value.WhichOneof("parameter_choice") for key, value in request.parameters.items()}
    return {key: getattr(request.parameters[key], choice) for key, choice in chosen.items() if choice is not None}
