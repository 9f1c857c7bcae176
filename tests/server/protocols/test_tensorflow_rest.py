"""TensorFlow Serving's REST API, and what KServe's first protocol shares with it."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.protocols.clients import Addresses

Ask = Callable[..., Any]
IMAGE = {"b64": base64.b64encode(b"\xff\xd8\x00").decode()}


@pytest.fixture(scope="module")
def ask(server: Addresses) -> Ask:
    """What the server answers; a pair of status and sentence where it refuses."""

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://{server.http}/v1/models{path}", data=data, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)["error"]

    return ask


def test_tells_of_models_versions_and_the_signature(ask: Ask) -> None:
    found = ask("/words")
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert found["model_version_status"] == [{"version": "2", **state}, {"version": "1", **state}]
    assert (found["name"], found["ready"]) == ("words", True)  # KServe's
    assert ask("/words/versions/1")["model_version_status"] == [{"version": "1", **state}]
    assert "words" in ask("")["models"]
    assert ask("/words/versions/9") == (404, "no model 'words' of version '9'")
    assert ask("/nobody") == (404, "no model 'nobody'")

    found = ask("/words/versions/1/metadata")
    assert found["model_spec"] == {"name": "words", "signature_name": "", "version": "1"}
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["dtype"] == "DT_STRING"
    dims = signature["outputs"]["probabilities"]["tensor_shape"]["dim"]
    assert [dim["size"] for dim in dims] == ["-1", "2"]


SHORT = {"label": "short", "probabilities": [0.8, 0.2], "tokens": ["a"]}


def test_answers_rows_with_rows_and_columns_with_columns(ask: Ask) -> None:
    assert ask("/words:predict", {"instances": ["a"]}) == {"predictions": [SHORT]}
    named = {"signature_name": "serving_default", "instances": [{"text": "a"}, {"text": {"b64": "YQ=="}}]}
    assert ask("/words/versions/1:predict", named) == {"predictions": [SHORT, SHORT]}

    columns = {"label": ["short", "short"], "probabilities": [[0.8, 0.2]] * 2, "tokens": [["a"], ["a"]]}
    assert ask("/words:predict", {"inputs": ["a", "a"]}) == {"outputs": columns}
    assert ask("/words:predict", {"inputs": {"text": ["a", "a"]}}) == {"outputs": columns}

    assert ask("/one:predict", {"instances": [1, {"x": 2.5}]}) == {"predictions": [2, 5]}
    assert ask("/one:predict", {"inputs": [1, 2.5]}) == {"outputs": [2, 5]}


def test_rows_may_have_what_is_optional_or_not(ask: Ask) -> None:
    rows = [[1, 2, 3], {"ids": [1, 2, 3], "scale": 2, "on": True, "image": IMAGE}]
    assert ask("/mixed:predict", {"instances": rows}) == {
        "predictions": [
            {"total": 6, "scaled": [1, 2, 3], "size": 0, "was_on": False},
            {"total": 6, "scaled": [2, 4, 6], "size": 3, "was_on": True},
        ]
    }


def test_classifies(ask: Ask) -> None:
    found = ask("/words:classify", {"examples": [{"text": "a"}, {"text": "a" * 12}]})
    assert [[label for label, _ in row] for row in found["result"]] == [["short", "long"]] * 2
    assert [score for _, score in found["result"][1]] == [0.25, 0.75]
    shared = ask("/words:classify", {"context": {"text": "a" * 12}, "examples": [{}, {"text": "a"}]})
    assert [row[1][1] > 0.5 for row in shared["result"]] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/words:predict", {}, 'expected either "instances" (rows) or "inputs" (columns)'),
        ("/words:predict", {"instances": ["a"], "inputs": ["a"]}, 'expected either "instances"'),
        ("/words:predict", {"instances": []}, "expected at least one row"),
        ("/words:predict", {"inputs": {}}, "expected at least one row"),
        ("/words:predict", {"instances": "a"}, "instances: Input should be a valid list"),
        ("/words:predict", {"instances": ["a"], "signature_name": "other"}, "expected serving_default, the only one"),
        ("/words:predict", {"inputs": "a"}, "expected a list with one value per row"),
        ("/words:predict", {"instances": ["a", 5]}, "row 1 (from 0): input text: expected text"),
        ("/words:predict", {"instances": [{"word": "a"}]}, "input 'word': unknown input. This model has: text"),
        ("/words:predict", {"instances": [["a"]]}, "input text: expected one value, not a list"),
        ("/words:predict", {"instances": [{"b64": "!"}]}, "expected base64 in b64"),
        ("/words:predict", {"instances": [{"b64": "/w=="}]}, "it is not UTF-8 text"),
        ("/words:predict", {"instances": [{"text": {"b64": 5}}]}, "expected a value, or"),
        ("/words:predict", {"instances": ["good", "bad"]}, "row 1 (from 0) of 2: text: it has 99 tokens"),
        ("/mixed:predict", {"instances": [{"scale": 1}]}, "input ids: it is missing"),
        ("/mixed:predict", {"instances": [[1, 2]]}, "expected a list of the shape [3]"),
        ("/mixed:predict", {"instances": [[1, 2, [3]]]}, "expected a list of the shape [3]"),
        ("/mixed:predict", {"instances": [5]}, "expected a list of the shape [3]"),
        ("/mixed:predict", {"instances": [[1, 2, 3.5]]}, "expected whole numbers. Received: a number with a fraction"),
        ("/mixed:predict", {"instances": [{"ids": [1, 2, 3], "scale": 1e300}]}, "out of range for FP32"),
        ("/mixed:predict", {"instances": [{"ids": [1, 2, 3], "image": "text"}]}, 'expected bytes, {"b64": "…"}'),
        ("/mixed:predict", {"inputs": {"ids": [[1, 2, 3]], "scale": [1, 2]}}, "the same number of rows in each input"),
        ("/mixed:classify", {"examples": [{}]}, "this model cannot classify: its task is tensors"),
        ("/words:classify", {"examples": []}, "expected at least one row"),
        ("/words:classify", {}, "examples: Field required"),
        ("/words:regress", {"examples": [{}]}, "regression is not supported"),
    ],
)
def test_refuses_what_does_not_fit_with_a_sentence(ask: Ask, path: str, body: Any, words: str) -> None:
    status, sentence = ask(path, body)
    assert status == 400
    assert words in sentence
    assert len(sentence) < 250
