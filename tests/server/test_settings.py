"""Settings are checked before anything is started."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import ArgumentError
from headwise.server.settings import Settings


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"workers": 0}, "--workers must be at least 1. Received: --workers=0"),
        ({"threads": 0}, "--threads must be at least 1. Received: --threads=0"),
        ({"max_batch": -1}, "--max-batch must be at least 1. Received: --max-batch=-1"),
        ({"max_queue": 0}, "--max-queue must be at least 1"),
        ({"max_tokens": 0}, "--max-tokens must be at least 1"),
        ({"max_body": 0}, "--max-body must be at least 1"),
        ({"max_delay_ms": -0.5}, "--max-delay-ms must be from 0 to 10000. Received: --max-delay-ms=-0.5"),
        ({"max_delay_ms": math.nan}, "--max-delay-ms must be from 0 to 10000. Received: --max-delay-ms=nan"),
        ({"timeout": 0.0}, "--timeout must be more than 0"),
        ({"timeout": math.inf}, "--timeout must be more than 0 and at most 86400 seconds. Received: --timeout=inf"),
        ({"drain": -1.0}, "--drain must be from 0 to 86400 seconds. Received: --drain=-1.0"),
        ({"backend": "jax"}, "--backend must be one of auto, torch, onnx. Received: --backend=jax"),
        ({"precision": "fp8"}, "--precision must be one of fp32, bf16, fp16, int8. Received: --precision=fp8"),
        ({"http_port": 65_536}, "--port must be from 0 to 65535. Received: --port=65536"),
        ({"ports": {"open_inference": 8000}}, "--grpc-port and --port must differ. Received: 8000 for both"),
        ({"ports": {"grpc": 0}}, "ports: expected names of open_inference, tensorflow. Received: 'grpc'"),
        ({"host": ""}, "--host must be an address to listen on"),
        ({"tls_cert": Path("cert.pem")}, "TLS needs a certificate and its key. Received: --tls-cert without --tls-key"),
        ({"tls_key": Path("key.pem")}, "TLS needs a certificate and its key. Received: --tls-key without --tls-cert"),
        ({"tls_cert": Path("no.pem"), "tls_key": Path("no.pem")}, "--tls-cert: the file no.pem does not exist"),
    ],
)
def test_a_value_that_makes_no_sense(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Settings(**values)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\n"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ArgumentError, match="token must be printable ASCII") as caught:
        Settings(token=token)
    assert not token or token not in str(caught.value)


def test_several_ports_may_be_free_ones() -> None:
    Settings(http_port=0, ports={"open_inference": 0, "tensorflow": 0})
    assert Settings(ports={"open_inference": None}).ports == {"open_inference": None, "tensorflow": 8500}


def test_workers_share_the_cores_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(workers=1000).worker_threads == 1
    assert Settings(workers=2, threads=3).worker_threads == 3
    assert [Settings(workers=2, threads=3).count_threads(busy) for busy in (1, 2)] == [3, 3]
    monkeypatch.setattr("headwise.server.settings._cores", lambda: 8)
    assert [Settings(workers=4).count_threads(busy) for busy in (0, 1, 2, 3, 4, 99)] == [8, 8, 4, 2, 2, 2]
