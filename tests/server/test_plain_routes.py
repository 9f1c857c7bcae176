"""`POST /classify {"text": …}` and its like: one row, several rows, streams, explanations, and what they say no to."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from headwise.server.app import create
from headwise.server.settings import Settings

from .plain_engine import Explaining, client, scope


def post(path: str, body: Any = None, **more: Any) -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return client().post(path, **content, **more)


def get(path: str, **more: Any) -> httpx.Response:
    return client().get(path, **more)


def test_a_row_is_answered_with_probabilities_by_label() -> None:
    answer = post("/classify", {"text": "abcd"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"label": "short", "probabilities": {"short": 0.5, "long": 0.5}, "tokens": ["abcd"]},
    )


def test_of_several_rows_only_the_poisoned_ones_fail() -> None:
    answer = post("/classify", {"rows": [{"text": "abcd"}, {"text": "bad"}, {"txt": "x"}, {"text": 1}, "x"]})
    assert answer.status_code == 200
    first, *others = answer.json()["rows"]
    assert first["label"] == "short"
    assert others == [
        {"error": "text: it has 99 tokens, and 9 is the most", "kind": "bad_input"},
        {"error": "unknown column: expected 'text'. Received: 'txt'", "kind": "bad_input"},
        {"error": "'text': expected a text. Received: a number", "kind": "bad_input"},
        {"error": "a row: expected an object with 'text'. Received: a text", "kind": "bad_input"},
    ]

    many = post("/classify", {"rows": [0] * 8193})
    assert (many.status_code, "expected at most 8192 rows" in many.json()["error"]) == (413, True)
    assert post("/classify", {"rows": [{}]}).json()["rows"] == [
        {"error": "'text' is missing. Expected: 'text'", "kind": "bad_input"}
    ]


def test_a_model_is_chosen_where_several_share_a_task() -> None:
    refused = post("/tensors", {"x": 1})
    assert refused.status_code == 400
    assert refused.json()["error"].endswith('Add "model" or ?model= with one of mixed, one')
    assert post("/tensors?model=one", {"x": 1}).json() == {"y": 2.0}
    assert post("/tensors", {"x": 1, "model": "one"}).json() == {"y": 2.0}
    assert post("/tensors?model=one", {"x": 1, "model": "mixed"}).status_code == 400
    assert post("/tensors?model=words", {"x": 1}).status_code == 404
    assert post("/classify?version=2", {"text": "x"}).status_code == 200
    assert post("/classify?version=7", {"text": "x"}).status_code == 404
    refused = post("/classify?modle=words", {"text": "x"})
    assert refused.status_code == 400
    assert refused.json()["error"] == "unknown parameter: expected ?model=, ?version=. Received: 'modle'"


def test_numbers_flags_and_bytes() -> None:
    image = base64.b64encode(b"\x00\xff\x01").decode()
    row = {"ids": [1, 2, 3], "scale": 0.5, "on": True, "image": image, "model": "mixed"}
    assert post("/tensors", row).json() == {"total": 6, "scaled": [0.5, 1.0, 1.5], "size": 3, "was_on": True}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "'ids' is missing"),
        ({"ids": [1, 2]}, "expected the shape [3]. Received: [2]"),
        ({"ids": 1}, "expected lists of the shape [3]. Received: a number"),
        ({"ids": [1, 2, [3]]}, "expected a whole number (INT64). Received: a list"),
        ({"ids": [1, 2, 0.5]}, "expected a whole number (INT64). Received: 0.5"),
        ({"ids": [1, 2, True]}, "expected a whole number (INT64). Received: true or false"),
        ({"ids": [1, 2, 2**63]}, "a number is out of range for INT64"),
        ({"ids": [1, 2, 3], "scale": 1e39}, "a number is out of range for FP32"),
        ({"ids": [1, 2, 3], "scale": 10**400}, "a number is out of range for FP32"),
        ({"ids": [1, 2, 3], "scale": "x"}, "expected a number (FP32). Received: a text"),
        ({"ids": [1, 2, 3], "on": 1}, "expected true or false. Received: a number"),
        ({"ids": [1, 2, 3], "image": "%"}, "'image': expected base64"),
    ],
)
def test_cells_of_another_kind_or_shape(row: dict[str, Any], says: str) -> None:
    answer = post("/tensors?model=mixed", row)
    assert (answer.status_code, answer.json()["kind"]) == (400, "bad_input")
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b'{"text": ', "not JSON: Expecting value at line 1, column 10"),
        (b"[1]", "expected a JSON object. Received: a list"),
        (b'{"text": "\xff"}', "expected UTF-8"),
        (b'{"text": "\\ud800"}', "a lone surrogate"),
        (b'{"text": NaN}', "a number is NaN, infinite or too long"),
        (b'{"text": ' + b"9" * 5000 + b"}", "a number is NaN, infinite or too long"),
        (b'{"text": ' + b"[" * 100_000, "nested too deep"),
        (b'{"rows": []}', "at least one row"),
        (b'{"text": "x", "text": "y"}', "a name stands twice"),
        (b'{"rows": [{"text": "x"}], "text": "x"}', "or only 'rows'"),
        (b'{"text": "x", "stream": 1}', "'stream': expected true or false"),
        (b'{"text": "x", "stream": true}', "cannot stream text. Leave 'stream' out"),
        (b'{"text": "x", "model": 1}', "'model': expected the name"),
    ],
)
def test_bodies_that_cannot_be_used(body: bytes, says: str) -> None:
    answer = post("/classify", body)
    assert (answer.status_code, answer.json()["kind"]) == (400, "bad_input")
    assert says in answer.json()["error"]


def test_refusals_have_their_status() -> None:
    busy = post("/classify", {"text": "busy"})
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "2")
    assert post("/classify", {"text": "bad"}).status_code == 400
    assert post("/explain", {"text": "late"}).status_code == 504
    assert post("/nothing", {"text": "x"}).status_code == 404
    assert get("/classify").headers["allow"] == "POST"
    assert get("/explain").status_code == 405
    assert get("/v2/nothing/there").json()["error"].startswith("this path does not exist")


def test_a_fault_of_the_server_tells_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    answer = post("/classify", {"text": "broken"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((lines.get("event", "message"), json.loads(lines["data"])))
    return found


@pytest.mark.parametrize("asked", [{"json": True}, {"accept": True}])
def test_text_comes_piece_by_piece_and_then_whole(asked: dict[str, bool]) -> None:
    body = {"text": "a b", **({"stream": True} if "json" in asked else {})}
    answer = post("/write", body, headers={"Accept": "text/event-stream"} if "accept" in asked else {})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events(answer.text) == [
        ("message", {"written": "A"}),
        ("message", {"written": "B"}),
        ("done", {"written": "AB"}),
    ]


def test_each_piece_is_sent_before_the_next_is_made() -> None:
    class Patient(Explaining):
        """Makes the second piece when the first was sent."""

        async def stream(self, *_: Any, **__: Any) -> Any:
            yield "A"
            await asyncio.wait_for(first.wait(), 5)
            yield "B"

    async def ask() -> list[bytes]:
        app, sent = create(Patient(), Settings()), []
        asked = [{"type": "http.request", "body": b'{"text": "a", "stream": true}'}]

        async def receive() -> Any:
            return asked.pop() if asked else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert b"content-encoding" not in dict(message["headers"])
            elif body := message["body"]:
                sent.append(body)
                first.set()

        await app(scope("/write", {"Accept-Encoding": "gzip"}), receive, send)
        return sent

    first = asyncio.Event()
    sent = asyncio.run(ask())
    assert sent[0] == b'data: {"written": "A"}\n\n'
    assert len(sent) == 3


def test_an_error_before_the_first_piece_has_a_status_and_later_is_an_event() -> None:
    assert post("/write", {"text": "bad a", "stream": True}).status_code == 504
    late = post("/write", {"text": "a bad b", "stream": True})
    assert events(late.text)[1:] == [("error", {"error": "it took longer than 1 s", "kind": "timeout"})]
    assert post("/write", {"rows": [{"text": "a"}], "stream": True}).status_code == 400


def test_an_explanation_is_statistics_or_a_page() -> None:
    assert post("/explain", {"text": "abc"}).json() == {"layers": [{"entropy": None}]}
    for answer in (
        post("/explain?page=true", {"text": "abc", "model": "words"}),
        post("/explain", {"text": "abc"}, headers={"Accept": "text/html"}),
    ):
        assert (answer.headers["content-type"], answer.text) == ("text/html; charset=utf-8", "<!doctype html><p>3")
    assert post("/explain?page=1", {"text": "abc"}).status_code == 400
    shown = post("/explain?rows=0,-1", {"text": "ab"}).json()
    assert (shown["rows"], shown["tokens"], shown["layers"]) == ([0, -1], ["a", "b"], [[[[1.0, 1.0], [1.0, 1.0]]]])
    assert shown["answer"] == post("/classify", {"text": "ab"}).json()
    for wrong in ("rows=a", "rows=", "rows=0&page=true"):
        assert post(f"/explain?{wrong}", {"text": "abc"}).status_code == 400
    assert post("/explain", {"rows": [{"text": "abc"}]}).status_code == 400


def test_the_index_lists_models_with_a_line_to_try_them() -> None:
    found = get("/").json()
    assert [model["name"] for model in found["models"]] == ["words", "words", "mixed", "writer", "one"]
    assert found["models"][0]["try"] == 'curl http://127.0.0.1/classify -d \'{"text": "a cat"}\''
    assert get("/", headers={"Accept": "text/html"}).headers["location"] == "docs"


def test_a_task_that_is_loaded_later_has_its_route() -> None:
    engine = Explaining()
    kept = engine.served.pop(("writer", "1"))
    asking = client(engine=engine)
    assert asking.post("/write", json={"text": "a"}).status_code == 404
    engine.served["writer", "1"] = kept
    assert asking.post("/write", json={"text": "a"}).status_code == 200
    assert "/write" in asking.get("/openapi.json").json()["paths"]


def test_health() -> None:
    engine = Explaining()
    for status in (200, 503):
        assert [client(engine=engine).get(path).status_code for path in ("/livez", "/readyz")] == [status] * 2
        engine.ready = engine.live = False


def leave(body: bytes, path: str, engine: Explaining, after: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    """Send a request, wait for `after`, and leave. Gives what was answered."""

    async def ask() -> list[Any]:
        app, sent, messages = create(engine, Settings()), [], iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            for message in messages:
                return message
            await after()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(app(scope(path), receive, send), 10)
        return sent

    return asyncio.run(ask())


def test_a_client_that_leaves_takes_its_rows_along() -> None:
    engine = Explaining()

    async def asked() -> None:
        while not engine.waiting:
            await asyncio.sleep(0)

    assert leave(b'{"text": "wait"}', "/classify", engine, asked) == []
    assert (engine.waiting, engine.cancelled) == (0, 1)


def test_a_client_that_leaves_a_stream_stops_it() -> None:
    class Endless(Explaining):
        pieces, closed = 0, False

        async def stream(self, *_: Any, **__: Any) -> Any:
            try:
                while True:
                    self.pieces += 1
                    yield "x"
                    await asyncio.sleep(0)
            finally:
                self.closed = True

    engine = Endless()

    async def written() -> None:
        while engine.pieces < 3:
            await asyncio.sleep(0)

    sent = leave(b'{"text": "a", "stream": true}', "/write", engine, written)
    assert sent[0]["status"] == 200
    assert engine.closed


def test_exports_alone_explain_nothing_and_say_what_does() -> None:
    engine = Explaining()
    del engine.served["words", "1"], engine.served["words", "2"]
    said = client(engine=engine).post("/explain", json={"x": 1.0}).json()["error"]
    assert "Serve the run folder of headwise train instead" in said
