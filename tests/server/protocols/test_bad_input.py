"""What HTTP clients send that is not the protocol's: a sentence, never a fault of the server, and it stays up."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from headwise.server.protocols.open_inference_http import Infer
from headwise.server.protocols.openai_embeddings import Embeddings
from headwise.server.protocols.tensorflow_rest import Classify
from headwise.server.protocols.text_embeddings import Embed
from tests.server.protocols.clients import Addresses

INFER = "/v2/models/words/infer"
LENGTH = "Inference-Header-Content-Length"
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
IDS = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
X = {"name": "x", "datatype": "FP32", "shape": [2]}


@pytest.fixture(scope="module")
def connection(server: Addresses) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    yield connection
    connection.close()


def post(connection: Any, path: str, body: bytes, **headers: Any) -> tuple[int, Any]:
    connection.request("POST", path, body, {key.replace("_", "-"): str(value) for key, value in headers.items()})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.fixture(autouse=True)
def _still_answers(connection: Any) -> Iterator[None]:
    yield
    assert post(connection, INFER, json.dumps({"inputs": [TEXT]}).encode())[0] == 200


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        ("words", [], "input text: it is missing"),
        ("words", [TEXT, TEXT], "input text: it is given more than once"),
        ("words", [TEXT, {**TEXT, "name": "x" * 999}], "unknown input. This model has: text"),
        ("words", [{**TEXT, "datatype": "FP32"}], "expected the datatype BYTES. Received: 'FP32'"),
        ("words", [{**TEXT, "datatype": "Q" * 999}], "expected the datatype BYTES"),
        ("words", [{**TEXT, "shape": [1, 1]}], "expected the shape [-1], where -1 is any size. Received: [1, 1]"),
        ("words", [{**TEXT, "shape": []}], "Received: []"),
        ("words", [{**TEXT, "shape": [0], "data": []}], "every size must be at least 1"),
        ("words", [{**TEXT, "shape": [-1]}], "Received: [-1]"),
        ("words", [{**TEXT, "shape": [2]}], "the shape [2] has 2 elements, the data 1"),
        ("words", [{**TEXT, "shape": [10**30]}], "inputs.0.shape.0"),
        ("words", [{**TEXT, "shape": ["a"]}], "inputs.0.shape.0: Input should be a valid integer"),
        ("words", [{**TEXT, "shape": ["1"]}], "inputs.0.shape.0: Input should be a valid integer"),
        ("words", [{**TEXT, "shape": [1] * 999}], "expected the shape [-1]"),
        ("words", [{**TEXT, "data": [5]}], "input text: expected text. Received: a number"),
        ("words", [{**TEXT, "data": [None]}], "input text: expected text. Received: null"),
        ("words", [{**TEXT, "data": [{}]}], "input text: expected text. Received: an object"),
        ("words", [{**TEXT, "data": [["a"], ["b"]], "shape": [2]}], "the lists in data do not have the shape [2]"),
        ("words", [{**TEXT, "data": "a"}], "inputs.0.data: Input should be a valid list"),
        ("words", [{"name": "text", "datatype": "BYTES", "shape": [1]}], "input text: expected data as a list"),
        ("words", [{**TEXT, "parameters": {"shared_memory_region": "a"}}], "shared memory is not supported"),
        ("words", ["a"], "inputs.0: expected an object"),
        ("words", "a", "inputs: Input should be a valid list"),
        ("mixed", [{**IDS, "data": [1, 2]}], "the shape [1, 3] has 3 elements, the data 2"),
        ("mixed", [{**IDS, "data": [[1, 2], [3]]}], "the lists in data do not have the shape [1, 3]"),
        ("mixed", [{**IDS, "data": [1, 2, 3.5]}], "expected whole numbers. Received: a number with a fraction"),
        ("mixed", [{**IDS, "data": [1, 2, True]}], "expected whole numbers. Received: true or false"),
        ("mixed", [{**IDS, "data": [1, 2, 2**63]}], "a number is out of range for INT64"),
        ("mixed", [{**IDS, "shape": [2**40, 0], "data": []}], "every size must be at least 1"),
        ("mixed", [{**IDS, "name": "image", "datatype": "BYTES", "shape": [1], "data": ["a"]}, IDS], "as binary data"),
        ("mixed", [IDS, {"name": "scale", "datatype": "FP32", "shape": [2], "data": [1, 2]}], "ids: 1, scale: 2"),
        ("mixed", [IDS, {"name": "on", "datatype": "BOOL", "shape": [1], "data": [1]}], "expected true or false"),
        ("one", [{**X, "data": [1, 1e39]}], "input x: a number is out of range for FP32"),
        ("one", [{**X, "data": [1, "2"]}], "input x: expected numbers. Received: text"),
    ],
)
def test_refuses_tensors_that_do_not_fit(connection: Any, model: str, inputs: Any, words: str) -> None:
    status, answer = post(connection, f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())
    assert status == 400
    assert words in answer["error"]
    assert len(answer["error"]) < 250


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"outputs": [{"name": "scores"}]}, "output 'scores': unknown output. This model has: label"),
        ({"outputs": [{"name": "label"}] * 2}, "output label: it is requested more than once"),
        ({"outputs": [{"name": "label", "parameters": {"classification": 2}}]}, "classification is not supported"),
        ({"parameters": {"timeout": "soon"}}, "parameter timeout: expected a whole number of microseconds"),
        ({"parameters": {"a": [1]}}, "the request does not follow this protocol"),
        ({"id": 5}, "id: Input should be a valid string"),
    ],
)
def test_refuses_wishes_that_it_cannot_meet(connection: Any, more: Any, words: str) -> None:
    status, answer = post(connection, INFER, json.dumps({"inputs": [TEXT], **more}).encode())
    assert (status, words in answer["error"]) == (400, True)


@pytest.mark.parametrize("path", [INFER, "/v1/models/words:predict", "/v1/models/words:classify"])
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"\xff", b"[" * 100_000, b'"a"', b"5", b"null", b'{"instances": [NaN]}'),
        *(b'{"inputs": [Infinity]}', b'{"inputs": ["\\ud800"], "examples": 5}'),
    ],
)
def test_refuses_a_body_that_is_no_request(connection: Any, path: str, body: bytes) -> None:
    status, answer = post(connection, path, body)
    assert status == 400
    assert len(answer["error"]) < 250


def binary(size: Any, **more: Any) -> bytes:
    given = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}, **more}
    return json.dumps({"inputs": [given]}).encode()


@pytest.mark.parametrize(
    ("head", "tail", "length", "words"),
    [
        (binary(5), b"\1\0\0\0a", 10**6, "expected 0 to"),
        (binary(5), b"\1\0\0\0a", -1, "expected 0 to"),
        (binary(5), b"\1\0\0\0a", "five", "expected 0 to"),
        (binary(5), b"\1\0\0\0a", 9, "the body is not JSON"),
        (binary(5), b"\1\0\0\0a", None, "the body is not JSON"),
        (binary(6), b"\1\0\0\0a", ..., "expected a binary_data_size of 0 to 5"),
        (binary(-1), b"\1\0\0\0a", ..., "expected a binary_data_size of 0 to 5"),
        (binary("5"), b"\1\0\0\0a", ..., "expected a binary_data_size of 0 to 5"),
        (binary(4), b"\1\0\0\0a", ..., "1 bytes after the JSON belong to no input"),
        (binary(5, data=["a"]), b"\1\0\0\0a", ..., "it has both data and a binary_data_size"),
        (binary(5), b"\1\0\0\0\xff", ..., "input text, row 0 (from 0): it is not UTF-8 text"),
        (binary(5), b"\2\0\0\0a", ..., "expected elements, each preceded by its length"),
        (binary(10), b"\1\0\0\0a" * 2, ..., "expected elements, each preceded by its length"),
        (binary(5, shape=[999]), b"\1\0\0\0a", ..., "5 bytes are too few"),
    ],
)
def test_refuses_bytes_that_are_not_what_they_are_said_to_be(
    connection: Any, head: bytes, tail: bytes, length: Any, words: str
) -> None:
    headers = {} if length is None else {LENGTH: len(head) if length is ... else length}
    status, answer = post(connection, INFER, head + tail, **headers)
    assert status == 400
    assert words in answer["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/nobody/infer", 404),
        ("/v2/models/words/versions/9/infer", 404),
        ("/v2/models/words/versions/-1/infer", 404),
        ("/v2/repository/models/nobody/load", 404),
        ("/v2/repository/models/nobody/unload", 404),
        ("/v1/models/nobody:predict", 404),
        ("/v1/models/words/versions/9:predict", 404),
    ],
)
def test_an_unknown_model_or_version_is_not_found(connection: Any, path: str, status: int) -> None:
    found, answer = post(connection, path, b"{}")
    assert (found, "no model" in answer["error"]) == (status, True)


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (INFER, {"inputs": [{**TEXT, "shape": [10**18]}]}),
        ("/v1/models/words:predict", {"instances": ["a"] * 8193}),
        ("/v1/models/words:predict", {"inputs": {"text": ["a"] * 8193}}),
        ("/v1/models/words:classify", {"examples": [{}] * 8193}),
    ],
)
def test_too_many_rows_at_once_are_too_large(connection: Any, path: str, request_: Any) -> None:
    status, answer = post(connection, path, json.dumps(request_).encode())
    assert (status, "expected at most 8192 rows" in answer["error"]) == (413, True)


def test_a_fault_of_the_server_tells_nobody_the_text(connection: Any, caplog: pytest.LogCaptureFixture) -> None:
    status, answer = post(connection, "/v1/models/words:predict", b'{"instances": ["broken"]}')
    assert (status, answer) == (500, {"error": "the server failed on this request; see its log"})
    assert "ZeroDivisionError in " in caplog.text
    assert "secret" not in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just("text"),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.sampled_from([*TEXT, "b64", "text"]), parts),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {
        "inputs": JSON
        | st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.just("text") | JSON,
                    "datatype": st.sampled_from(["BYTES", "FP32"]) | JSON,
                    "shape": st.lists(st.integers(-2, 3), max_size=3) | JSON,
                    "data": JSON,
                }
            ),
            max_size=2,
        )
    },
    optional={"outputs": JSON, "parameters": JSON, "id": JSON, "instances": JSON, "signature_name": JSON},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(path=st.sampled_from([INFER, "/v2/models/mixed/infer", "/v1/models/words:predict"]), request=REQUESTS)
def test_no_json_is_a_fault_of_the_server(connection: Any, path: str, request: Any) -> None:
    status, answer = post(connection, path, json.dumps(request).encode("utf-8", "surrogatepass"))
    assert status in (200, 400), answer
    assert status == 200 or len(answer["error"]) < 300


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    head=st.binary(max_size=20) | st.integers(0, 9).map(binary), tail=st.binary(max_size=20), length=st.integers(0, 99)
)
def test_no_bytes_are_a_fault_of_the_server(connection: Any, head: bytes, tail: bytes, length: int) -> None:
    status, answer = post(connection, INFER, head + tail, **{LENGTH: length if length > 50 else len(head)})
    assert status in (200, 400), answer


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (Infer, {"inputs": [1] * 99}),
        (Infer, {"inputs": [{**TEXT, "shape": ["a"] * 99}]}),
        (Infer, {"inputs": [{**TEXT, "parameters": dict.fromkeys(map(str, range(99)), ())}] * 257}),
        (Infer, {"inputs": [], "outputs": [{}] * 99}),
        (Classify, {"examples": [1] * 99}),
        (Embed, {"inputs": [1] * 99}),
        (Embeddings, {"model": "minilm", "input": [-1] * 99}),
        (Embeddings, {"model": "minilm", "input": [[-1] * 99] * 99}),
    ],
)
def test_a_list_is_refused_at_its_first_mistake(body: type[BaseModel], given: Any) -> None:
    """While all mistakes of a long list were collected, all other requests waited."""
    with pytest.raises(ValidationError) as error:
        body.model_validate(given, strict=True)
    assert error.value.error_count() <= 4  # one for each form that the list may have
