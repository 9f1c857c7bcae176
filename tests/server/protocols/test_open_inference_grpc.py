"""The Open Inference Protocol over gRPC, asked by Triton's client as it is."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from headwise.server.protocols.sdk import messages
from tests.server.protocols.clients import Addresses, triton_grpc, until
from tests.server.protocols.engines import classified

triton = triton_grpc()

TEXTS = ["a b", "some longer text: ü 中"]
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def client(server: Addresses) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(scope="module")
def infer(server: Addresses) -> Iterator[Any]:
    """A bare call, bytes to bytes."""
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel.unary_unary(INFER)


def tensor(name: str, datatype: str, array: np.ndarray) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def texts(values: list[str] = TEXTS) -> Any:
    return tensor("text", "BYTES", np.array(values, np.object_))


def test_tells_of_the_server_and_its_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata().name == "headwise"
    assert client.is_model_ready("words")
    assert not client.is_model_ready("words", "9")
    assert not client.is_model_ready("nobody")
    found = client.get_model_metadata("words", as_json=True)
    assert found["versions"] == ["1", "2"]
    assert found["outputs"][1] == {"name": "probabilities", "datatype": "FP32", "shape": ["-1", "2"]}
    config = client.get_model_config("mixed", as_json=True)["config"]
    assert config["input"][1] == {"name": "scale", "data_type": "TYPE_FP32", "dims": ["-1"], "optional": True}
    assert client.get_model_config("writer").config.model_transaction_policy.decoupled


def test_answers_each_row_in_order_with_the_outputs_that_are_wanted(client: Any) -> None:
    found = client.infer("words", [texts()], request_id="id 7")
    expected = [classified(text) for text in TEXTS]
    assert found.get_response().id == "id 7"
    assert found.get_response().model_version == "2"
    assert found.as_numpy("label").tolist() == [row["label"].encode() for row in expected]
    np.testing.assert_array_equal(found.as_numpy("probabilities"), [row["probabilities"] for row in expected])
    assert [token.decode() for token in found.as_numpy("tokens")[1]] == TEXTS[1].split()

    wanted = [triton.InferRequestedOutput("probabilities"), triton.InferRequestedOutput("label")]
    found = client.infer("words", [texts()], model_version="1", outputs=wanted, compression_algorithm="gzip")
    assert [output.name for output in found.get_response().outputs] == ["probabilities", "label"]
    assert found.get_response().model_version == "1"


def test_takes_numbers_of_each_kind_and_bytes_that_are_no_text(client: Any) -> None:
    ids = np.array([[1, 2, 3], [2**40, 5, -6]])
    found = client.infer(
        "mixed",
        [
            tensor("ids", "INT64", ids),
            tensor("on", "BOOL", np.array([True, False])),
            tensor("scale", "FP32", np.array([0.5, -2], np.float32)),
            tensor("image", "BYTES", np.array([b"\xff\xd8\x00", b""], np.object_)),
        ],
    )
    assert found.as_numpy("total").tolist() == [6, 2**40 - 1]
    assert found.as_numpy("was_on").tolist() == [True, False]
    assert found.as_numpy("size").tolist() == [3, 0]
    np.testing.assert_array_equal(found.as_numpy("scaled"), ids * np.array([[0.5], [-2.0]]))


def test_answers_in_lists_who_asks_in_lists(infer: Any) -> None:
    request = messages.ModelInferRequest(
        model_name="mixed",
        inputs=[
            {"name": "ids", "datatype": "INT64", "shape": [1, 3], "contents": {"int64_contents": [1, 2, 3]}},
            {"name": "scale", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [2]}},
            {"name": "on", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [True]}},
        ],
    )
    found = messages.ModelInferResponse.FromString(infer(request.SerializeToString()))
    assert not found.raw_output_contents
    outputs = {output.name: output.contents for output in found.outputs}
    assert list(outputs["scaled"].fp64_contents) == [2, 4, 6]
    assert list(outputs["was_on"].bool_contents) == [True]


def test_loads_and_unloads_for_clients_of_triton_and_of_kserve(server: Addresses, client: Any) -> None:
    client.load_model("words")
    index = client.get_model_repository_index(as_json=True)["models"]
    assert {"name": "words", "version": "3", "state": "UNAVAILABLE", "reason": "loading"} in index
    with grpc.insecure_channel(server.grpc) as channel:
        unload = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
        answer = unload(messages.RepositoryModelUnloadRequest(model_name="words").SerializeToString())
    assert messages.RepositoryModelUnloadResponse.FromString(answer).isUnloaded
    with pytest.raises(InferenceServerException, match=r"NOT_FOUND. no model 'words'"):
        client.unload_model("words")


@pytest.fixture
def stream(client: Any) -> Iterator[Any]:
    """Ask on a stream, and give so many responses: their text, or their error."""
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))

    def ask(number: int, model: str, text: str, **more: Any) -> list[Any]:
        client.async_stream_infer(model, [texts([text])], **more)
        return [_told(*found.get(timeout=30)) for _ in range(number)]

    yield ask
    client.stop_stream()


def _told(result: Any, error: Any) -> Any:
    if error is not None:
        return error.message()
    response = result.get_response()
    last = response.parameters["triton_final_response"].bool_param
    names = [output.name for output in response.outputs]
    return (None if not names else result.as_numpy(names[0])[0].decode(), last)


def test_streams_a_text_piece_by_piece(stream: Any) -> None:
    assert stream(3, "writer", "one two three") == [("ONE", False), ("TWO", False), ("THREE", False)]
    assert stream(2, "writer", "four", enable_empty_final_response=True) == [("FOUR", False), (None, True)]
    assert stream(1, "words", "a b") == [("short", True)]


def test_an_error_on_a_stream_is_of_its_request_alone(stream: Any) -> None:
    assert stream(2, "writer", "good bad") == [("GOOD", False), "it took longer than 1 s"]
    assert stream(1, "nobody", "x") == ["no model 'nobody'"]
    assert stream(1, "writer", "again") == [("AGAIN", False)]


def test_stops_working_for_a_client_that_has_left(server: Addresses, client: Any) -> None:
    cancelled = server.engine.cancelled
    call = client.async_infer("words", [texts(["wait"])], callback=lambda result, error: None)
    until(lambda: server.engine.waiting == 1)
    call.cancel()
    until(lambda: server.engine.cancelled == cancelled + 1)
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
        client.infer("words", [texts(["wait"])], client_timeout=0.05)
    until(lambda: server.engine.cancelled == cancelled + 2)


def test_says_which_row_cannot_be_used_and_when_to_try_again(client: Any, infer: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT. row 1 \(from 0\) of 2: text: it has"):
        client.infer("words", [texts(["good", "bad"])])
    request = messages.ModelInferRequest(
        model_name="words",
        inputs=[{"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"busy"]}}],
    )
    with pytest.raises(grpc.RpcError) as refused:
        infer(request.SerializeToString())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused.value.trailing_metadata())["grpc-retry-pushback-ms"] == "1500"


TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"a"]}}
IDS = {"name": "ids", "datatype": "INT64", "shape": [1, 3]}


@pytest.mark.parametrize(
    ("model", "request_", "words"),
    [
        ("words", {"inputs": []}, "input text: it is missing"),
        ("words", {"inputs": [{**TEXT, "datatype": "FP32"}]}, "expected the datatype BYTES. Received: 'FP32'"),
        ("words", {"inputs": [{**TEXT, "datatype": "NONE"}]}, "an unknown datatype"),
        ("words", {"inputs": [{**TEXT, "shape": [2]}]}, "the shape .2. has 2 elements, the data 1"),
        ("words", {"inputs": [{**TEXT, "contents": {"bytes_contents": [b"\xff"]}}]}, "row 0.*it is not UTF-8 text"),
        ("words", {"inputs": [TEXT], "raw_input_contents": [b"a"]}, "both contents and raw_input_contents"),
        ("words", {"inputs": [TEXT], "raw_input_contents": [b"a", b"b"]}, "1 inputs, but raw_input_contents of 2"),
        ("words", {"inputs": [TEXT], "outputs": [{"name": "scores"}]}, "output 'scores': unknown output"),
        ("words", {"inputs": [TEXT], "parameters": {"timeout": {"int64_param": -1}}}, "a whole number of microseconds"),
        ("mixed", {"inputs": [IDS], "raw_input_contents": [b"abc"]}, "3 bytes are not a multiple of 8"),
        ("mixed", {"inputs": [IDS], "raw_input_contents": [b"12345678"]}, "3 elements, the data 1"),
        ("one", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}, "has 1 elements, the data 0"),
    ],
)
def test_refuses_what_does_not_fit_with_a_sentence(infer: Any, model: str, request_: Any, words: str) -> None:
    with pytest.raises(grpc.RpcError, match=words) as refused:
        infer(messages.ModelInferRequest(model_name=model, **request_).SerializeToString())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(refused.value.details()) < 250


def test_bytes_that_are_no_message_are_bad_input_and_no_fault_of_the_server(
    infer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for request in (b"\xff\xff", b"\n\x02\xff\xff"):  # the second has a name that is not UTF-8
        with pytest.raises(grpc.RpcError, match="the bytes are not a valid ModelInferRequest") as refused:
            infer(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


def test_a_fault_of_the_server_tells_nobody_the_text(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InferenceServerException, match=r"INTERNAL. the server failed on this request"):
        client.infer("words", [texts(["broken"])])
    assert "ZeroDivisionError in " in caplog.text
    assert "secret" not in caplog.text
    assert client.infer("words", [texts()]).as_numpy("label").tolist() == [b"short", b"long"]
