"""TensorFlow Serving over gRPC: `tensorflow.serving.PredictionService` and `ModelService`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.protocols import tensorflow_serving as tf
from headwise.server.protocols.answers import answers
from headwise.server.protocols.columns import check_count, check_names, check_shape, find_column, make_arrays, make_rows
from headwise.server.protocols.columns import make_array as make_array_of_values
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.grpc_service import Method, service
from headwise.server.protocols.tensorflow_tensors import MESSAGES, make_array, make_shape, make_tensor
from headwise.tasks.columns import Column, Row

PREDICTION = "tensorflow.serving.PredictionService"
MODEL = "tensorflow.serving.ModelService"
_AVAILABLE, _LOADING = 30, 20


def add(server: grpc.aio.Server, engine: Engine) -> None:
    """Add both services to a server that has not started yet."""
    prediction, model = _methods(engine)
    server.add_generic_rpc_handlers((service(PREDICTION, prediction), service(MODEL, model)))


def _methods(engine: Engine) -> tuple[dict[str, Method], dict[str, Method]]:
    async def predict(request: Any, context: Any) -> Any:
        served = _find(engine, request.model_spec)
        columns = served.description.inputs
        for name in request.output_filter:  # refuse before anything is computed
            find_column(served.description.outputs, name, "output")
        check_names(columns, list(request.inputs))
        arrays = {name: make_array(find_column(columns, name), tensor) for name, tensor in request.inputs.items()}
        answered = await answers(engine, served, make_rows(columns, arrays))
        boxes = make_arrays(served.description, answered, list(dict.fromkeys(request.output_filter)))
        tensors = {name: make_tensor(find_column(served.description.outputs, name), box) for name, box in boxes.items()}
        return MESSAGES["PredictResponse"](outputs=tensors, model_spec=_spec(served))

    async def classify(request: Any, context: Any) -> Any:
        served = _find(engine, request.model_spec)
        tf.classifier(served.description)
        rows = _examples(served, request.input)
        found = tf.classes(served, await answers(engine, served, rows))
        result = {"classifications": [{"classes": [{"label": k, "score": v} for k, v in row]} for row in found]}
        return MESSAGES["ClassificationResponse"](result=result, model_spec=_spec(served))

    async def regress(request: Any, context: Any) -> Any:
        _find(engine, request.model_spec)
        raise tf.refuse_to_regress()

    async def metadata(request: Any, context: Any) -> Any:
        served = _find(engine, request.model_spec)
        unknown = [field for field in request.metadata_field if field != "signature_def"]
        if unknown or not request.metadata_field:
            raise bad_input(
                f"metadata_field: expected signature_def. Received: {piece(unknown[0]) if unknown else 'none'}"
            )
        signatures = MESSAGES["SignatureDefMap"](signature_def={tf.SIGNATURE: _signature(served)})
        found = {
            "type_url": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
            "value": signatures.SerializeToString(),
        }
        return MESSAGES["GetModelMetadataResponse"](model_spec=_spec(served), metadata={"signature_def": found})

    async def status(request: Any, context: Any) -> Any:
        name, version = _asked(request.model_spec)
        found = [s for s in tf.statuses(engine, name, version) if _number(s.version) is not None]
        return MESSAGES["GetModelStatusResponse"](
            model_version_status=[
                {"version": _number(s.version), "state": _AVAILABLE if s.ready else _LOADING, "status": {}}
                for s in found
            ]
        )

    prediction = {
        "Predict": Method(MESSAGES["PredictRequest"], predict),
        "Classify": Method(MESSAGES["ClassificationRequest"], classify),
        "Regress": Method(MESSAGES["ClassificationRequest"], regress),  # the same fields
        "GetModelMetadata": Method(MESSAGES["GetModelMetadataRequest"], metadata),
    }
    return prediction, {"GetModelStatus": Method(MESSAGES["GetModelStatusRequest"], status)}


def _asked(spec: Any) -> tuple[str, str | None]:
    """Return (name, version) of the model in a ModelSpec. A version label is returned as if it were a version."""
    version = str(spec.version.value) if spec.HasField("version") else spec.version_label or None
    return spec.name, version


def _find(engine: Engine, spec: Any) -> Served:
    served = engine.find(*_asked(spec))
    tf.check_signature(spec.signature_name)
    return served


def _spec(served: Served) -> Any:
    number = _number(served.version)
    version = {"version_label": served.version} if number is None else {"version": {"value": number}}
    return MESSAGES["ModelSpec"](name=served.name, signature_name=tf.SIGNATURE, **version)


def _number(version: str) -> int | None:
    return int(version) if version.isdecimal() and int(version) < 2**63 else None


def _signature(served: Served) -> Any:
    def tensors(columns: Sequence[Column]) -> dict[str, Any]:
        return {
            c.name: MESSAGES["TensorInfo"](
                name=f"{tf.SIGNATURE}_{c.name}:0", dtype=tf.DTYPES[c.datatype][1], tensor_shape=make_shape(-1, *c.shape)
            )
            for c in columns
        }

    description = served.description
    return MESSAGES["SignatureDef"](
        inputs=tensors(description.inputs), outputs=tensors(description.outputs), method_name=tf.PREDICT
    )


def _examples(served: Served, given: Any) -> list[Row]:
    """Read the rows in an Input message: each example, together with the features of the shared context, is a row."""
    both = given.example_list_with_context
    examples = given.example_list.examples or both.examples
    check_count(len(examples))
    shared = dict(both.context.features.feature)
    columns = served.description.inputs
    rows: list[Row] = []
    for number, example in enumerate(examples):
        features = shared | dict(example.features.feature)
        try:
            check_names(columns, list(features))
            arrays = {name: _feature(find_column(columns, name), feature) for name, feature in features.items()}
            rows.extend(make_rows(columns, arrays))
        except RequestRefused as error:
            raise RequestRefused(error.kind, f"row {number} (from 0): {error}") from error
    return rows


def _feature(column: Column, feature: Any) -> Any:
    """Convert a feature (a list of bytes, floats or int64) to an array with one row."""
    field = {"BYTES": "bytes_list", "FP32": "float_list", "FP64": "float_list"}.get(column.datatype, "int64_list")
    values: list[Any] = list(getattr(feature, field).value)
    if column.datatype == "BOOL":
        values = [value != 0 for value in values]
    shape = (1, *((len(values),) if len(column.shape) == 1 else ()))
    check_shape(column, shape)
    if len(values) != (shape[1:] or (1,))[0]:
        raise bad_input(f"input {column.name}: expected one value in {field}. Received: {len(values)} values")
    return make_array_of_values(column, values, f"input {column.name}").reshape(shape)
