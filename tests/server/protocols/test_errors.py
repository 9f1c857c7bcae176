"""What each error is in HTTP and in gRPC."""

from __future__ import annotations

import json
from typing import get_args

import grpc
import pytest

from headwise.errors import ArgumentError, FileError, RefusalKind, RequestRefused
from headwise.server.protocols import errors


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("bad_input", 400, "INVALID_ARGUMENT"),
        ("unauthorized", 401, "UNAUTHENTICATED"),
        ("not_found", 404, "NOT_FOUND"),
        ("too_large", 413, "INVALID_ARGUMENT"),
        ("busy", 429, "RESOURCE_EXHAUSTED"),
        ("failed", 500, "INTERNAL"),
        ("unavailable", 503, "UNAVAILABLE"),
        ("timeout", 504, "DEADLINE_EXCEEDED"),
    ],
)
def test_each_kind_has_its_status_and_code(kind: RefusalKind, status: int, code: str) -> None:
    refused = RequestRefused(kind, "why")
    assert errors.http_status(refused) == status
    assert errors.grpc_code(refused) is grpc.StatusCode[code]


def test_no_kind_is_forgotten() -> None:
    for kind in get_args(RefusalKind):
        errors.http_status(RequestRefused(kind, "why"))
        errors.grpc_code(RequestRefused(kind, "why"))


def test_an_error_of_headwise_is_bad_input_and_any_other_a_fault() -> None:
    assert errors.http_status(ArgumentError("no")) == 400
    assert errors.http_status(FileError("/secret")) == 500
    assert errors.http_status(KeyError("secret")) == 500
    assert "secret" not in str(errors.refusal(FileError("/secret")))


def test_a_reply_has_a_sentence_and_says_when_to_try_again() -> None:
    reply = errors.reply(RequestRefused("busy", "the queue is full", retry_after=0.2))
    assert (reply.status_code, json.loads(bytes(reply.body))) == (429, {"error": "the queue is full"})
    assert reply.headers["Retry-After"] == "1"
    assert errors.reply(RequestRefused("unauthorized", "who?")).headers["WWW-Authenticate"] == "Bearer"


def test_a_piece_is_short() -> None:
    assert errors.piece("a") == "'a'"
    assert len(errors.piece("a" * 999)) == 40
