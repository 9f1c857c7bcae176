"""Who may ask: the token, pages of other sites, and names that are not this machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.errors import ArgumentError, FileError
from headwise.server.auth import is_local, read_token
from headwise.server.settings import Settings

from .plain_engine import client

TOKEN = "a-token-of-32-characters-or-more"


def status(path: str, settings: Settings | None = None, **headers: str) -> int:
    asking = client(settings, **headers)
    answer = asking.post(path, json={"text": "a"}) if path in ("/classify", "/explain") else asking.get(path)
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
    return answer.status_code


def test_only_who_knows_the_token_may_ask() -> None:
    settings = Settings(token=TOKEN)
    for path in ("/classify", "/v2", "/v1/models/words", "/metrics", "/", "/openapi.json", "/nothing"):
        assert status(path, settings) == 401
    assert status("/classify", settings, Authorization=f"Bearer {TOKEN}") == 200
    assert status("/classify", settings, Authorization=f"bearer {TOKEN}") == 200
    for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer"):
        assert status("/classify", settings, Authorization=wrong) == 401


def test_a_refusal_has_the_form_of_the_protocol_that_was_asked() -> None:
    def ask(path: str, **headers: str) -> tuple[int, Any]:
        answer = client(Settings(token=TOKEN, max_body=100), **headers).post(path, content=b" " * 101)
        return answer.status_code, answer.json()

    known = f"Bearer {TOKEN}"
    said = "expected the server's token: Authorization: Bearer TOKEN"
    of_openai = {"type": "invalid_request_error", "param": None, "code": None}
    assert ask("/embed") == (401, {"error": said, "error_type": "Validation"})
    assert ask("/v1/embeddings") == (401, {"error": {"message": said, **of_openai}})
    assert ask("/v1/models/words:predict") == (401, {"error": said})
    assert ask("/classify") == (401, {"error": said, "kind": "unauthorized"})
    assert ask("/embedded") == (401, {"error": said, "kind": "unauthorized"})
    status, foreign = ask("/embed", Origin="https://elsewhere.example")
    assert (status, foreign["error_type"]) == (403, "Validation")
    status, large = ask("/embed", Authorization=known)
    assert (status, large["error_type"]) == (413, "Validation")
    status, large = ask("/v1/embeddings", Authorization=known)
    assert (status, large["error"]["type"]) == (400, "invalid_request_error")


def test_probes_and_the_empty_page_need_none() -> None:
    for path in ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/docs"):
        assert status(path, Settings(token=TOKEN)) == 200


def test_pages_of_other_sites_and_other_names_are_refused() -> None:
    assert status("/classify", Origin="http://127.0.0.1") == 200
    assert status("/classify", Origin="https://elsewhere.example") == 403
    assert status("/classify", Origin="null") == 403
    for name, expected in (("localhost:8000", 200), ("[::1]:8000", 200), ("rebound.example", 403), ("[bad", 403)):
        assert status("/classify", Host=name) == expected
    assert status("/classify", Settings(host="0.0.0.0"), Host="models.example") == 200


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    assert read_token(file, "of the environment") == TOKEN
    assert read_token(None, TOKEN) == TOKEN
    assert read_token(None, None) is None
    with pytest.raises(FileError, match=r"--token-file .*none: cannot be read"):
        read_token(tmp_path / "none", None)
    for bad in ("", "short", "two words that are long enough", "é" * 20, f"{TOKEN}\nand a second line"):
        with pytest.raises(ArgumentError, match=r"HEADWISE_TOKEN: expected one line") as told:
            read_token(None, bad)
        assert not bad or bad not in str(told.value)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.1.2.3", "::1"])
def test_names_of_this_machine(host: str) -> None:
    assert is_local(host)
    assert not is_local(f"{host}.example")
