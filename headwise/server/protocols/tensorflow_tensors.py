"""TensorFlow Serving's messages, and conversion between its tensors and arrays.

Source: tensorflow/core/framework and tensorflow_serving/apis, .proto. An enum is a number here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headwise.errors import RequestRefused
from headwise.server.protocols import columns, proto
from headwise.server.protocols.errors import bad_input
from headwise.server.protocols.tensorflow_serving import DTYPES
from headwise.tasks.columns import DTYPES as NUMPY_DTYPES
from headwise.tasks.columns import Column

MESSAGES = proto.messages("""
    message Dim { int64 size = 1; string name = 2; }
    message TensorShapeProto { repeated Dim dim = 2; bool unknown_rank = 3; }
    message TensorProto {
        int32 dtype = 1; TensorShapeProto tensor_shape = 2; int32 version_number = 3; bytes tensor_content = 4;
        repeated float float_val = 5; repeated double double_val = 6; repeated int32 int_val = 7;
        repeated bytes string_val = 8; repeated int64 int64_val = 10; repeated bool bool_val = 11;
    }
    message TensorInfo { string name = 1; int32 dtype = 2; TensorShapeProto tensor_shape = 3; }
    message SignatureDef {
        map<string, TensorInfo> inputs = 1; map<string, TensorInfo> outputs = 2; string method_name = 3;
    }
    message SignatureDefMap { map<string, SignatureDef> signature_def = 1; }
    message Any { string type_url = 1; bytes value = 2; }

    message Int64Value { int64 value = 1; }
    message ModelSpec { string name = 1; Int64Value version = 2; string signature_name = 3; string version_label = 4; }
    message PredictRequest {
        ModelSpec model_spec = 1; map<string, TensorProto> inputs = 2; repeated string output_filter = 3;
    }
    message PredictResponse { map<string, TensorProto> outputs = 1; ModelSpec model_spec = 2; }

    message BytesList { repeated bytes value = 1; }
    message FloatList { repeated float value = 1; }
    message Int64List { repeated int64 value = 1; }
    message Feature { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }
    message Features { map<string, Feature> feature = 1; }
    message Example { Features features = 1; }
    message ExampleList { repeated Example examples = 1; }
    message ExampleListWithContext { repeated Example examples = 1; Example context = 2; }
    message Input { ExampleList example_list = 1; ExampleListWithContext example_list_with_context = 2; }
    message ClassificationRequest { ModelSpec model_spec = 1; Input input = 2; }
    message Class { string label = 1; float score = 2; }
    message Classifications { repeated Class classes = 1; }
    message ClassificationResult { repeated Classifications classifications = 1; }
    message ClassificationResponse { ClassificationResult result = 1; ModelSpec model_spec = 2; }

    message GetModelMetadataRequest { ModelSpec model_spec = 1; repeated string metadata_field = 2; }
    message GetModelMetadataResponse { ModelSpec model_spec = 1; map<string, Any> metadata = 2; }

    message StatusProto { int32 error_code = 1; string error_message = 2; }
    message ModelVersionStatus { int64 version = 1; int32 state = 2; StatusProto status = 3; }
    message GetModelStatusRequest { ModelSpec model_spec = 1; }
    message GetModelStatusResponse { repeated ModelVersionStatus model_version_status = 1; }
""")

_NAMES = {number: name for name, number, _ in DTYPES.values()}


def make_array(column: Column, tensor: Any) -> np.ndarray:
    """Convert a TensorProto to an array [N, *shape] of the column's dtype.

    The values of the TensorProto are bytes or a list. A list that is too short is filled up with its last value, as
    TensorFlow does.

    Raises:
        RequestRefused: "bad_input".
    """
    name, number, field = DTYPES[column.datatype]
    if tensor.dtype != number:
        received = _NAMES.get(tensor.dtype, f"DataType {tensor.dtype}")
        raise bad_input(f"input {column.name}: expected {name}. Received: {received}")
    if tensor.tensor_shape.unknown_rank:
        raise bad_input(f"input {column.name}: its shape is missing")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    columns.check_shape(column, shape)
    dtype, size = NUMPY_DTYPES[column.datatype], math.prod(shape)
    values = getattr(tensor, field)
    if tensor.tensor_content and column.datatype != "BYTES":
        if len(tensor.tensor_content) != size * np.dtype(dtype).itemsize:
            raise _size(column, shape, f"{len(tensor.tensor_content)} bytes")
        array = np.frombuffer(tensor.tensor_content, dtype)
        return (array.view(np.uint8) != 0 if column.datatype == "BOOL" else array).reshape(shape)
    # A short list could claim any size, so a filled tensor must not be larger than a message could hold.
    if not values or len(values) > size or (len(values) < size and size > _MOST_REPEATED):
        raise _size(column, shape, f"{len(values)} values")
    array = np.empty(size, dtype)
    array[: len(values)] = values
    array[len(values) :] = values[-1]
    return array.reshape(shape)


_MOST_REPEATED = 2**20


def _size(column: Column, shape: list[int], received: str) -> RequestRefused:
    return bad_input(
        f"input {column.name}: the shape {columns.piece(shape)} has {math.prod(shape)} elements. Received: {received}"
    )


def make_tensor(column: Column, array: np.ndarray) -> Any:
    """Convert an array to a TensorProto."""
    _, number, field = DTYPES[column.datatype]
    tensor = MESSAGES["TensorProto"](dtype=number, tensor_shape=make_shape(*array.shape))
    getattr(tensor, field).extend(array.ravel().tolist())
    return tensor


def make_shape(*sizes: int) -> Any:
    """Make a TensorShapeProto of these sizes: -1 = any size."""
    return MESSAGES["TensorShapeProto"](dim=[{"size": size} for size in sizes])
