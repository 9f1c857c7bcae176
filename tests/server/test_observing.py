"""The log and the metrics: what they tell, and that they tell nothing of what users wrote."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from headwise.server.app import create
from headwise.server.metrics import Metrics
from headwise.server.pool.statistics import Statistics

from .plain_engine import Explaining, client_of, logged

SECRET = "my-secret-text"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    with logged() as stream:
        yield stream


def ask(app: FastAPI, *requests: tuple[str, str, Any], **headers: str) -> list[httpx.Response]:
    asking = client_of(app, **headers)
    return [asking.request(method, path, json=body) for method, path, body in requests]


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_request_has_a_line(log: io.StringIO) -> None:
    app = create(Explaining())
    inputs = [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]
    answers = ask(
        app,
        ("POST", "/classify", {"text": "abc"}),
        ("POST", "/v2/models/words/versions/2/infer", {"inputs": inputs}),
        ("POST", "/write", {"text": "a b", "stream": True}),
        ("GET", "/livez", None),
        ("GET", "/nothing", None),
    )
    told = [line for line in lines(log) if line["event"] == "request"]
    assert [(line["method"], line["route"], line.get("model"), line["code"], line.get("rows")) for line in told] == [
        ("POST", "/classify", "words", 200, 1),
        ("POST", "/v2/models/{name}/versions/{version}/infer", "words", 200, 2),
        ("POST", "/write", "writer", 200, 1),
        ("GET", "/livez", None, 200, None),
        ("GET", "other", None, 404, None),
    ]
    assert [line["request"] for line in told] == [answer.headers["x-request-id"] for answer in answers]
    assert all(line["ms"] >= 0 and line["time"].endswith("Z") for line in told)


def test_nothing_of_what_users_wrote_is_told(log: io.StringIO) -> None:
    app = create(Explaining(), metrics=(metrics := Metrics()))
    answers = ask(
        app,
        ("POST", "/classify", {"text": SECRET}),
        ("POST", "/classify", {"text": f"bad {SECRET}"}),
        ("POST", "/classify", {SECRET: 1}),
        ("POST", f"/classify?model={SECRET}", {"text": "a"}),
        ("POST", f"/{SECRET}", {"text": "a"}),
        ("GET", f"/v2/models/{SECRET}", None),
        ("POST", f"/v1/models/{SECRET}:predict", {"instances": [SECRET]}),
        ("POST", "/v1/models/words:predict", {"instances": [SECRET, 1]}),
        **{"User-Agent": SECRET, "X-Request-Id": f"{SECRET} with blanks"},
    )
    assert SECRET in answers[2].text  # the client itself may be told
    assert SECRET not in log.getvalue() + metrics.text().decode()


def test_of_a_fault_the_log_has_the_place_and_not_the_words(log: io.StringIO) -> None:
    ask(create(Explaining()), ("POST", "/classify", {"text": "broken"}))  # the engine raises "secret broken"
    fault = next(line for line in lines(log) if line["event"] == "failed")
    assert fault["error"] == "ZeroDivisionError"
    assert fault["at"][-1].endswith(" classified")
    assert "secret" not in log.getvalue()


def test_lines_of_other_packages_are_json_of_one_line(log: io.StringIO) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: ValueError('%s')", SECRET)
    logging.getLogger("uvicorn.error").info("not told")
    (line,) = lines(log)
    assert (line["event"], line["says"]) == ("asyncio", "Task exception was never retrieved")


def test_an_id_of_the_client_is_kept(log: io.StringIO) -> None:
    (answer,) = ask(create(Explaining()), ("GET", "/livez", None), **{"X-Request-Id": "trace-1.2_3"})
    assert answer.headers["x-request-id"] == "trace-1.2_3"
    assert lines(log)[0]["request"] == "trace-1.2_3"


def test_metrics_count_requests_and_tell_of_the_pool() -> None:
    statistics = Statistics(workers=2, restarts=1, loads=3, failed_loads=1)
    numbers = statistics.of("words", "1")
    numbers.waiting = 4
    numbers.ended("ok", 6)
    numbers.batch_rows.observe(3)
    metrics, engine = Metrics(), Explaining()
    metrics.tell_engine(engine, statistics)
    app = create(engine, metrics=metrics)
    *_, answer = ask(
        app, ("POST", "/classify", {"text": "a"}), ("POST", "/classify", {"text": "bad"}), ("GET", "/metrics", None)
    )
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[(name, *sorted(labels.items()))]

    for code in ("200", "400"):
        assert value("headwise_requests_total", protocol="http", route="/classify", code=code) == 1
    assert value("headwise_request_seconds_count", protocol="http", route="/classify") == 2
    assert value("headwise_requests_in_flight", protocol="http") == 1  # this one
    assert value("headwise_model_ready", model="words", version="1", task="classify") == 1
    assert (value("headwise_workers"), value("headwise_worker_restarts_total")) == (2, 1)
    assert value("headwise_model_loads_total", outcome="ok") == 2
    assert value("headwise_queue_rows", model="words", version="1") == 4
    assert value("headwise_rows_total", model="words", version="1", outcome="ok") == 6
    assert value("headwise_batch_rows_bucket", model="words", version="1", le="2.0") == 0
    assert value("headwise_batch_rows_bucket", model="words", version="1", le="4.0") == 1
