"""The Open Inference Protocol over HTTP, asked by Triton's client as it is."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server.protocols.clients import Addresses, until
from tests.server.protocols.engines import classified

TEXTS = ["a b", "some longer text: ü 中"]


@pytest.fixture(scope="module")
def client(server: Addresses) -> Iterator[Any]:
    with triton.InferenceServerClient(server.http) as client:
        yield client


def tensor(name: str, datatype: str, array: np.ndarray, binary: bool = True) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def texts(binary: bool = True, values: list[str] = TEXTS) -> Any:
    return tensor("text", "BYTES", np.array(values, np.object_), binary)


def test_tells_of_the_server_and_its_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "headwise"
    assert client.is_model_ready("words")
    assert client.is_model_ready("words", "1")
    assert not client.is_model_ready("words", "9")
    assert not client.is_model_ready("nobody")
    assert client.get_model_metadata("words") == {
        "name": "words",
        "versions": ["1", "2"],
        "platform": "headwise_torch",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "tokens", "datatype": "BYTES", "shape": [-1, -1]},
        ],
    }
    config = client.get_model_config("mixed", "1")
    assert config["input"][0] == {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1, 3], "optional": False}
    assert config["max_batch_size"] == 0


def test_is_not_ready_while_a_model_is_not(server: Addresses, client: Any) -> None:
    server.engine.ready = False
    try:
        assert not client.is_server_ready()
        assert client.is_server_live()
    finally:
        server.engine.ready = True


@pytest.mark.parametrize("inputs_binary", [True, False])
@pytest.mark.parametrize("outputs_binary", [True, False, None])
def test_answers_each_row_in_order(client: Any, inputs_binary: bool, outputs_binary: bool | None) -> None:
    names = ["label", "probabilities", "tokens"]
    wanted = None
    if outputs_binary is not None:
        wanted = [triton.InferRequestedOutput(name, binary_data=outputs_binary) for name in names]
    found = client.infer("words", [texts(inputs_binary)], outputs=wanted)
    expected = [classified(text) for text in TEXTS]
    labels = [label if isinstance(label, str) else label.decode() for label in found.as_numpy("label")]
    assert labels == [row["label"] for row in expected]
    np.testing.assert_array_equal(found.as_numpy("probabilities"), [row["probabilities"] for row in expected])
    assert found.as_numpy("tokens").shape == (2, 5)  # the shorter row ends with empty text
    last = found.as_numpy("tokens")[1].tolist()
    assert [token if isinstance(token, str) else token.decode() for token in last] == TEXTS[1].split()
    assert found.as_numpy("tokens")[0].tolist()[2:] in ([b""] * 3, [""] * 3)


def test_gives_the_outputs_the_version_and_the_coding_that_are_wanted(client: Any, server: Addresses) -> None:
    wanted = [triton.InferRequestedOutput("probabilities", binary_data=True)]
    found = client.infer("words", [texts()], outputs=wanted, request_id="id 7").get_response()
    assert [output["name"] for output in found["outputs"]] == ["probabilities"]
    assert found["id"] == "id 7"

    assert client.infer("words", [texts()]).get_response()["model_version"] == "2"
    assert client.infer("words", [texts()], model_version="1").get_response()["model_version"] == "1"
    with pytest.raises(InferenceServerException, match="no model 'words' of version '9'") as refused:
        client.infer("words", [texts()], model_version="9")
    assert refused.value.status() == "404"

    client.infer("words", [texts()], timeout=1_500_000)
    assert server.engine.timeouts[-1] == 1.5


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_reads_a_packed_body(client: Any, algorithm: str) -> None:
    found = client.infer(
        "words", [texts()], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    assert found.as_numpy("label").tolist() == [b"short", b"long"]


@pytest.mark.parametrize("binary", [True, False])
def test_takes_numbers_of_each_kind_and_leaves_out_what_is_optional(client: Any, binary: bool) -> None:
    ids = np.array([[1, 2, 3], [2**40, 5, -6]])
    found = client.infer("mixed", [tensor("ids", "INT64", ids, binary)])
    assert found.as_numpy("total").tolist() == [6, 2**40 - 1]
    found = client.infer(
        "mixed",
        [
            tensor("on", "BOOL", np.array([True, False]), binary),
            tensor("ids", "INT64", ids, binary),
            tensor("scale", "FP32", np.array([0.5, -2], np.float32), binary),
        ],
    )
    assert found.as_numpy("was_on").tolist() == [True, False]
    assert found.as_numpy("was_on").dtype == np.bool_
    np.testing.assert_array_equal(found.as_numpy("scaled"), ids * np.array([[0.5], [-2.0]]))

    image = np.array([b"\xff\xd8\x00\xfe"], np.object_)
    ids = tensor("ids", "INT64", np.ones((1, 3), np.int64))
    found = client.infer("mixed", [ids, tensor("image", "BYTES", image)])
    assert found.as_numpy("size").tolist() == [4]


def test_loads_and_unloads(server: Addresses, client: Any) -> None:
    client.load_model("words")
    index = client.get_model_repository_index()
    assert {"name": "words", "version": "3", "state": "UNAVAILABLE", "reason": "loading"} in index
    assert not client.is_model_ready("words", "3")
    client.unload_model("words")
    assert all(entry["state"] == "READY" for entry in client.get_model_repository_index())
    with pytest.raises(InferenceServerException, match="no model 'nobody'"):
        client.load_model("nobody")
    with pytest.raises(InferenceServerException, match="A model is loaded unchanged from the server's disk"):
        client.load_model("words", config="{}")


def test_says_which_row_cannot_be_used_and_when_to_try_again(client: Any, server: Addresses) -> None:
    with pytest.raises(InferenceServerException, match=r"row 1 \(from 0\) of 2: text: it has 99 tokens"):
        client.infer("words", [texts(values=["good", "bad"])])
    with pytest.raises(InferenceServerException, match=r"^\[400\] text: it has 99 tokens"):
        client.infer("words", [texts(values=["bad"])])

    connection = http.client.HTTPConnection(server.http)
    tensors = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["busy"]}]
    connection.request("POST", "/v2/models/words/infer", json.dumps({"inputs": tensors}))
    response = connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "2")
    assert json.load(response) == {"error": "the queue is full: 8 requests wait"}
    connection.close()


@pytest.mark.parametrize("path", ["/v2/models/words/infer", "/v1/models/words:predict"])
def test_stops_working_for_a_client_that_has_left(server: Addresses, path: str) -> None:
    tensors = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["wait"]}]
    body = json.dumps({"inputs": tensors} if path.startswith("/v2") else {"instances": ["wait"]})
    cancelled = server.engine.cancelled
    with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: server.engine.waiting == 1)
    until(lambda: server.engine.cancelled == cancelled + 1)
