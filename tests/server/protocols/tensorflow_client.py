"""A client as it is written for TensorFlow Serving: a process of its own, because it imports TensorFlow."""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)


def main(address: str) -> dict[str, Any]:
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return {
            "words": predict(stub, "words", {"text": tf.make_tensor_proto(["a b", "some longer text"])}),
            "(given version)": predict(stub, "words", {"text": tf.make_tensor_proto(["a"])}, version=1, only="label"),
            "mixed": predict(
                stub,
                "mixed",
                {
                    "ids": tf.make_tensor_proto(np.array([[1, 2, 3], [2**40, 5, -6]])),
                    "scale": tf.make_tensor_proto([0.5, 0.5], dtype=tf.float32),
                    "on": tf.make_tensor_proto(True, shape=[2]),  # one value that stands for both
                    "image": tf.make_tensor_proto([b"\xff\x00", b""]),
                },
            ),
            "wrong dtype": predict(stub, "words", {"text": tf.make_tensor_proto([1.0])}),
            "wrong shape": predict(stub, "words", {"text": tf.make_tensor_proto("a")}),
            "unknown": predict(stub, "nobody", {"text": tf.make_tensor_proto(["a"])}),
            "signature": signature(stub),
            "classes": classes(stub),
            "regressed": regressed(stub),
            "states": states(channel),
        }


def predict(stub: Any, name: str, inputs: dict[str, Any], version: int | None = None, only: str = "") -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = "serving_default"
    if version is not None:
        request.model_spec.version.value = version
    for key, tensor in inputs.items():
        request.inputs[key].CopyFrom(tensor)
    request.output_filter.extend([only] if only else [])
    try:
        response = stub.Predict(request, timeout=30)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    arrays = {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}
    return {
        "version": response.model_spec.version.value,
        **{key: [array.dtype.name, [_text(row) for row in array.tolist()]] for key, array in arrays.items()},
    }


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def signature(stub: Any) -> Any:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "words"
    found = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(request, timeout=30).metadata["signature_def"].Unpack(found)
    outputs = found.signature_def["serving_default"].outputs
    return {key: [tf.as_dtype(o.dtype).name, [d.size for d in o.tensor_shape.dim]] for key, o in outputs.items()}


def classes(stub: Any) -> Any:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "words"
    for text in ("a", "a" * 12):
        feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
        example = tf.train.Example(features=tf.train.Features(feature={"text": feature}))
        request.input.example_list.examples.append(example)
    result = stub.Classify(request, timeout=30).result
    return [[[one.label, round(one.score, 6)] for one in row.classes] for row in result.classifications]


def regressed(stub: Any) -> Any:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "words"
    try:
        return str(stub.Regress(request, timeout=30))
    except grpc.RpcError as error:
        return [error.code().name, error.details()]


def states(channel: Any) -> Any:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "words"
    found = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=30)
    names = get_model_status_pb2.ModelVersionStatus.State
    return [[one.version, names.Name(one.state), one.status.error_code] for one in found.model_version_status]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
