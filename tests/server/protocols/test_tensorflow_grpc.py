"""TensorFlow Serving over gRPC: its own client, in one process of its own, and what that client cannot send."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headwise.errors import RequestRefused
from headwise.server.protocols.tensorflow_tensors import MESSAGES, make_array
from headwise.tasks.columns import Column
from tests.server.protocols.clients import Addresses

CLIENT = Path(__file__).with_name("tensorflow_client.py")
STRING, FLOAT, INT64, BOOL = 7, 1, 9, 10


def test_a_client_written_for_tensorflow_serving_works_unchanged(server: Addresses) -> None:
    ran = subprocess.run([sys.executable, CLIENT, server.grpc], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    words = found["words"]
    assert words["version"] == 2
    assert words["label"] == ["object", ["short", "long"]]
    assert words["probabilities"][0] == "float32"
    assert words["probabilities"][1][1] == pytest.approx([0.2, 0.8])
    assert words["tokens"][1] == [["a", "b", ""], ["some", "longer", "text"]]
    assert found["(given version)"] == {"version": 1, "label": ["object", ["short"]]}
    assert found["mixed"] == {
        "version": 1,
        "total": ["int64", [6, 2**40 - 1]],
        "scaled": ["float64", [[0.5, 1, 1.5], [2**39, 2.5, -3]]],
        "size": ["int32", [2, 0]],
        "was_on": ["bool", [True, True]],
    }
    assert found["wrong dtype"] == ["INVALID_ARGUMENT", "input text: expected DT_STRING. Received: DT_FLOAT"]
    assert found["wrong shape"][1].startswith("input text: expected the shape [-1], where -1 is any size. Received: []")
    assert found["unknown"] == ["NOT_FOUND", "no model 'nobody'"]
    assert found["signature"] == {
        "label": ["string", [-1]],
        "probabilities": ["float32", [-1, 2]],
        "tokens": ["string", [-1, -1]],
    }
    assert found["classes"] == [[["short", 0.8], ["long", 0.2]], [["short", 0.25], ["long", 0.75]]]
    assert found["regressed"] == ["INVALID_ARGUMENT", "regression is not supported. Use predict"]
    assert found["states"] == [[2, "AVAILABLE", 0], [1, "AVAILABLE", 0]]


@pytest.fixture(scope="module")
def call(server: Addresses) -> Iterator[Any]:
    """Call a method with a message; a pair of code and sentence where it refuses."""
    with grpc.insecure_channel(server.grpc) as channel:

        def call(method: str, request: Any, service: str = "PredictionService") -> Any:
            try:
                return channel.unary_unary(f"/tensorflow.serving.{service}/{method}")(request)
            except grpc.RpcError as error:
                return error.code().name, error.details()

        yield call


def predict(call: Any, inputs: dict[str, Any], name: str = "words", **more: Any) -> Any:
    spec = {"name": name, **more.pop("spec", {})}
    answer = call("Predict", MESSAGES["PredictRequest"](model_spec=spec, inputs=inputs, **more).SerializeToString())
    return MESSAGES["PredictResponse"].FromString(answer) if isinstance(answer, bytes) else answer


def tensor(dtype: int, shape: list[int], **values: Any) -> Any:
    return {"dtype": dtype, "tensor_shape": {"dim": [{"size": size} for size in shape]}, **values}


def test_a_list_that_is_too_short_goes_on_with_its_last_value(call: Any) -> None:
    ids = tensor(INT64, [2, 3], int64_val=[1, 2])
    found = predict(call, {"ids": ids}, "mixed", output_filter=["total"])
    assert list(found.outputs["total"].int64_val) == [1 + 2 + 2, 2 + 2 + 2]


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("words", {}, "input text: it is missing"),
        ("words", {"text": tensor(STRING, [1])}, "has 1 elements. Received: 0 values"),
        ("words", {"text": tensor(STRING, [1], string_val=[b"\xff"])}, "it is not UTF-8 text"),
        ("words", {"text": {"dtype": STRING, "tensor_shape": {"unknown_rank": True}}}, "its shape is missing"),
        ("words", {"text": tensor(99, [1])}, "expected DT_STRING. Received: DataType 99"),
        ("words", {"text": tensor(STRING, [1], string_val=[b"bad"])}, "text: it has 99 tokens"),
        ("mixed", {"ids": tensor(INT64, [1, 3], tensor_content=b"123")}, "has 3 elements. Received: 3 bytes"),
        (
            "mixed",
            {"ids": tensor(INT64, [2, 3], int64_val=[1]), "scale": tensor(FLOAT, [1], float_val=[1])},
            "expected the same number of rows, at least 1, in each input. Received:",
        ),
    ],
)
def test_refuses_what_does_not_fit_with_a_sentence(call: Any, name: str, inputs: Any, words: str) -> None:
    code, sentence = predict(call, inputs, name)
    assert code == "INVALID_ARGUMENT"
    assert words in sentence


def test_one_value_does_not_stand_for_billions() -> None:
    few = MESSAGES["TensorProto"](**tensor(INT64, [1, 2**40], int64_val=[1]))
    with pytest.raises(RequestRefused, match="Received: 1 values"):
        make_array(Column("ids", "INT64", (-1,)), few)


def test_refuses_an_unknown_output_signature_version_or_field(call: Any) -> None:
    text = {"text": tensor(STRING, [1], string_val=[b"a"])}
    assert predict(call, text, output_filter=["scores"])[1].startswith("output 'scores': unknown output")
    assert "expected serving_default, the only one" in predict(call, text, spec={"signature_name": "other"})[1]
    assert predict(call, text, spec={"version": {"value": 9}})[0] == "NOT_FOUND"
    assert predict(call, text, spec={"version_label": "stable"}) == (
        "NOT_FOUND",
        "no model 'words' of version 'stable'",
    )
    for fields in ([], ["graph"]):
        request = MESSAGES["GetModelMetadataRequest"](model_spec={"name": "words"}, metadata_field=fields)
        assert "expected signature_def" in call("GetModelMetadata", request.SerializeToString())[1]
    assert call("GetModelStatus", b"", "ModelService")[0] == "NOT_FOUND"
    assert call("Predict", b"\xff")[0] == "INVALID_ARGUMENT"


def test_classifies_examples_that_share_a_context(call: Any) -> None:
    text = {"features": {"feature": {"text": {"bytes_list": {"value": [b"a" * 12]}}}}}
    given = {"example_list_with_context": {"context": text, "examples": [{}, {}]}}
    request = MESSAGES["ClassificationRequest"](model_spec={"name": "words"}, input=given)
    found = MESSAGES["ClassificationResponse"].FromString(call("Classify", request.SerializeToString()))
    assert [row.classes[1].score for row in found.result.classifications] == [0.75, 0.75]


@pytest.mark.parametrize(
    ("name", "examples", "words"),
    [
        ("words", [], "expected at least one row"),
        ("words", [{}], "row 0 (from 0): input text: it is missing"),
        ("words", [{"text": {"float_list": {"value": [1]}}}], "expected one value in bytes_list. Received: 0"),
        ("words", [{"text": {"bytes_list": {"value": [b"a", b"b"]}}}], "expected one value in bytes_list. Received: 2"),
        ("mixed", [{}], "this model cannot classify"),
    ],
)
def test_refuses_examples_that_do_not_fit(call: Any, name: str, examples: list[Any], words: str) -> None:
    given = {"example_list": {"examples": [{"features": {"feature": features}} for features in examples]}}
    request = MESSAGES["ClassificationRequest"](model_spec={"name": name}, input=given)
    code, sentence = call("Classify", request.SerializeToString())
    assert code == "INVALID_ARGUMENT"
    assert words in sentence
