"""A real `headwise serve`: what it answers, that it loses nothing when it is told to stop, and replaces what dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.http

from headwise.server.protocols.tensorflow_tensors import MESSAGES, make_array
from headwise.tasks.columns import Column
from tests.cli.conftest import reviews_run
from tests.server.protocols.clients import triton_grpc

__all__ = ["reviews_run"]

PATIENCE = 120  # seconds, until a test gives up: on a busy machine all takes long


@dataclass
class Server:
    process: subprocess.Popen[str]
    lines: list[str]
    log: Path

    def port(self, line: str) -> int:
        return next(int(match[1]) for each in self.lines if (match := re.search(rf"^{line}: \S*:(\d+)", each)))

    def ask(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port('HTTP')}{path}", None if body is None else json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def workers(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]


@pytest.fixture(scope="module")
def server(reviews_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    arguments = [f"films={reviews_run}", "--port=0", "--grpc-port=0", "--tensorflow-port=0", "--threads=1"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "headwise", "serve", *arguments, "--max-batch=2"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("Ready"):
                break
        else:
            raise AssertionError(log.read_text())
        try:
            yield Server(process, lines, log)
        finally:
            process.kill()


class Load:
    """Clients that ask as fast as they are answered, each on a connection that it keeps while the server does."""

    def __init__(self, port: int, clients: int) -> None:
        self._port, self._over = port, threading.Event()
        self.answers: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.lost: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def wait_for(self, answers: int) -> None:
        wait(lambda: self.answers.total() >= answers)

    def _ask(self) -> None:
        while not self._over.is_set():
            connection = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
            try:
                connection.connect()
            except OSError:
                return  # nobody listens any more: nothing was accepted
            try:
                while not self._over.is_set():
                    connection.request("POST", "/classify", b'{"text": "a good film"}')
                    answer = connection.getresponse()
                    self.answers[answer.status] += 1
                    body = answer.read()
                    if answer.status != 200:
                        self.refusals[json.loads(body)["error"]] += 1
                    if answer.will_close:
                        break
            except (OSError, HTTPException) as error:
                self.lost.append(repr(error))
            finally:
                connection.close()


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_says_where_it_is_and_answers(server: Server) -> None:
    assert server.lines[0] == "films: classify, headwise_torch"
    assert server.ask("/readyz") == "ready"
    assert server.ask("/classify", {"text": "a good film"})["label"] in ("good", "bad")
    assert "attention" in json.dumps(server.ask("/explain", {"text": "a good film"})).lower()
    assert server.ask("/explain?page=true", {"text": "a good film"}).startswith("<!")
    assert server.ask("/v2/models/films")["platform"] == "headwise_torch"
    with socket.create_connection(("127.0.0.1", server.port("TensorFlow Serving over gRPC")), PATIENCE):
        pass
    assert "a good film" not in server.log.read_text()


TEXTS = ["a good film", "a bad film"]


def test_clients_of_triton_and_tensorflow_serving_get_what_the_plain_route_gives(server: Server) -> None:
    """TensorFlow's own client, which is slow to import: protocols/test_tensorflow_grpc.py."""
    rows = server.ask("/classify", {"rows": [{"text": text} for text in TEXTS]})["rows"]
    expected = pytest.approx([share for row in rows for share in row["probabilities"].values()], abs=1e-6)
    address = f"127.0.0.1:{server.port('TensorFlow Serving over gRPC')}"
    for triton, line in ((tritonclient.http, "HTTP"), (triton_grpc(), "Open Inference Protocol over gRPC")):
        with triton.InferenceServerClient(f"127.0.0.1:{server.port(line)}") as client:
            assert client.is_server_ready()
            assert client.is_model_ready("films")
            text = triton.InferInput("text", [2], "BYTES")
            text.set_data_from_numpy(np.array(TEXTS, dtype=object))
            answer = client.infer("films", [text])
            assert [label.decode() for label in answer.as_numpy("label")] == [row["label"] for row in rows]
            assert answer.as_numpy("probabilities").flatten().tolist() == expected
    given = {"dtype": 7, "tensor_shape": {"dim": [{"size": 2}]}, "string_val": [text.encode() for text in TEXTS]}
    request = MESSAGES["PredictRequest"](model_spec={"name": "films"}, inputs={"text": given})
    with grpc.insecure_channel(address) as channel:
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        told = MESSAGES["PredictResponse"].FromString(predict(request.SerializeToString(), timeout=PATIENCE))
    assert make_array(Column("probabilities", "FP32", (2,)), told.outputs["probabilities"]).ravel().tolist() == expected


def test_a_worker_that_is_killed_under_load_is_replaced(server: Server) -> None:
    load = Load(server.port("HTTP"), clients=4)
    load.wait_for(20)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    wait(lambda: bool(load.refusals or load.lost))
    before = load.answers[200]
    wait(lambda: load.answers[200] > before + 20)
    load.stop()
    assert load.lost == []
    assert set(load.answers) == {200, 503}
    assert all("worker" in sentence for sentence in load.refusals)
    assert server.workers() != [worker]
    assert "headwise_worker_restarts_total 1.0" in server.ask("/metrics")


def test_told_to_stop_under_load_it_answers_all_that_it_accepted(server: Server) -> None:
    workers = server.workers()
    load = Load(server.port("HTTP"), clients=8)
    load.wait_for(40)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    load.stop()
    assert load.lost == []
    assert set(load.answers) == {200}
    wait(lambda: not any(psutil.pid_exists(worker) for worker in workers))
    told = [json.loads(line)["event"] for line in server.log.read_text().splitlines()]
    assert told[-1] == "drained"
