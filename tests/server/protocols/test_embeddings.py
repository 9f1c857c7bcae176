"""/embed and /v1/embeddings: the vectors of Bert.encode, for the clients of two other servers."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.models import Bert
from headwise.models.checkpoint import default_model
from headwise.server.app import create
from headwise.server.engine import Served
from headwise.server.interfaces import open_interface
from headwise.server.interfaces.answering import Answering
from headwise.server.pool.answering import answer_all
from headwise.server.settings import Settings
from headwise.tasks.columns import Row
from tests.conftest import missing
from tests.server.protocols.clients import running
from tests.server.protocols.engines import InProcess

TEXTS = ["a warm, funny film", "a dull one", "Zürich, 你好"]


@cache
def minilm() -> Answering[Any]:
    return open_interface(default_model(), threads=1)  # type: ignore[return-value]


@cache
def expected() -> np.ndarray:
    """Of length 1, as the settings of MiniLM say."""
    return Bert.from_pretrained(default_model()).encode(TEXTS).numpy()


class Embedding(InProcess):
    """MiniLM, beside models that make no vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.served["minilm", "1"] = Served("minilm", "1", minilm().description, True)

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        if name != "minilm" or any(row.get("text") == "busy" for row in rows):
            return await super().answer(name, version, rows, timeout=timeout)
        with torch.inference_mode():
            return list(answer_all(minilm(), rows, 4096, lambda what, error: pytest.fail(f"{what}: {error}")))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create(Embedding(), Settings())) as address:
        yield f"http://{address}"


def post(url: str, path: str, body: object, **headers: str) -> httpx.Response:
    return httpx.post(url + path, json=body, headers=headers, timeout=30)


def shortened(vectors_NM: np.ndarray, width: int) -> np.ndarray:
    return vectors_NM[:, :width] / np.linalg.norm(vectors_NM[:, :width], axis=1)[:, None]


def test_embed_gives_the_vectors_of_encode(url: str) -> None:
    answer = post(url, "/embed", {"inputs": TEXTS})
    assert answer.status_code == 200
    assert np.array(answer.json()) == pytest.approx(expected(), abs=1e-5)
    one = post(url, "/embed", {"inputs": TEXTS[0], "normalize": False, "truncate": True, "prompt_name": None})
    assert np.array(one.json()) == pytest.approx(expected()[:1], abs=1e-5)
    short = np.array(post(url, "/embed", {"inputs": TEXTS, "dimensions": 8}).json())
    assert short == pytest.approx(shortened(expected(), 8), abs=1e-5)


def test_a_long_text_is_cut_only_where_that_is_asked_for(url: str) -> None:
    long = "film " * 600
    refused = post(url, "/embed", {"inputs": [TEXTS[0], long]})
    assert refused.status_code == 413
    assert refused.json()["error_type"] == "Validation"
    assert "row 1 (from 0) of 2: expected at most" in refused.json()["error"]
    cut = post(url, "/embed", {"inputs": long, "truncate": True})
    embeds = minilm().description.embeds
    same = post(url, "/embed", {"inputs": "film " * (embeds.max_tokens - 2)})
    assert np.array(cut.json()) == pytest.approx(np.array(same.json()), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"inputs": []}, 400, "Empty", "`inputs` cannot be empty"),
        ({"inputs": ["a", ""]}, 400, "Empty", "Received: an empty one, at 1"),
        ({"inputs": 3}, 422, "Validation", "does not follow this protocol"),
        ({}, 422, "Validation", "inputs"),
        ({"inputs": "a", "prompt_name": "query"}, 413, "Validation", "prompt_name: expected one of none"),
        ({"inputs": "a", "dimensions": 385}, 413, "Validation", "dimensions: expected 1 to 384. Received: 385"),
        ({"inputs": "a", "model": "words"}, 404, "Validation", "expected one of minilm. Received: 'words'"),
        ({"inputs": "busy"}, 429, "Overloaded", "the queue is full"),
    ],
)
def test_errors_of_embed(url: str, body: object, status: int, kind: str, says: str) -> None:
    answer = post(url, "/embed", body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    assert says in answer.json()["error"]


def test_a_lone_surrogate_is_no_text(url: str) -> None:
    for path, name, status in (("/embed", "inputs", 422), ("/v1/embeddings", "input", 400)):
        body = f'{{"model": "minilm", "{name}": "a\\ud800"}}'
        assert httpx.post(url + path, content=body).status_code == status


def test_without_a_model_that_makes_vectors_it_says_so() -> None:
    with running(create(InProcess(), Settings())) as address:
        for path, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a", "model": "words"})):
            answer = post(f"http://{address}", path, body)
            assert answer.status_code == 404
            assert "none is loaded. Serve the folder of a BERT" in answer.text


# --- The client of OpenAI ---------------------------------------------------------------------------------------------


def openai_module() -> ModuleType:
    try:
        import openai
    except ImportError:
        missing("the package openai, of the extra test")
    return openai


@contextmanager
def openai_client(url: str) -> Iterator[Any]:
    with openai_module().OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_client_of_openai_gets_the_same_vectors(url: str) -> None:
    with openai_client(url) as client:
        formats: list[dict[str, Any]] = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
        for how in formats:
            answer = client.embeddings.create(model="minilm", input=TEXTS, **how)
            found = [each.embedding for each in answer.data]
            if isinstance(found[0], str):  # the client decodes base64 only if it chose it itself
                found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
            assert np.array(found) == pytest.approx(expected(), abs=1e-5)
            assert [each.index for each in answer.data] == [0, 1, 2]
        count = sum(len(minilm().sentences.tokenized(text)[0]) for text in TEXTS)  # type: ignore
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == count
        assert (answer.model, answer.object) == ("minilm", "list")
        one = client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=8)
        assert np.array(one.data[0].embedding) == pytest.approx(shortened(expected(), 8)[0], abs=1e-5)
        assert {model.id for model in client.models.list()} == {"minilm", "mixed", "one", "words", "writer"}

    ids = minilm().sentences.tokenized(TEXTS[0])[0]  # type: ignore
    with openai_client(url) as client:
        for given in (ids, [ids, [101, 102]]):
            answer = client.embeddings.create(model="minilm", input=given)
            assert np.array(answer.data[0].embedding) == pytest.approx(expected()[0], abs=1e-5)


def test_the_client_of_openai_understands_the_errors(url: str) -> None:
    openai = openai_module()
    cases: list[tuple[dict[str, Any], str, str, Any]] = [
        ({"input": "a", "model": "gpt"}, "NotFoundError", "expected one of minilm", "model_not_found"),
        ({"input": [], "model": "minilm"}, "BadRequestError", "`input` cannot be empty", None),
        ({"input": [[]], "model": "minilm"}, "BadRequestError", "an empty one", None),
        ({"input": "film " * 600, "model": "minilm"}, "BadRequestError", "expected at most", None),
        ({"input": [10**6], "model": "minilm"}, "BadRequestError", "expected numbers from 0 to 30521", None),
        ({"input": [-1], "model": "minilm"}, "BadRequestError", "does not follow this protocol", None),
        ({"input": "a", "model": "minilm", "dimensions": 400}, "BadRequestError", "expected 1 to 384", None),
        ({"input": "busy", "model": "minilm"}, "RateLimitError", "the queue is full", None),
    ]
    with openai_client(url) as client:
        for asked, name, says, code in cases:
            with pytest.raises(getattr(openai, name)) as caught:
                client.embeddings.create(**asked)
            assert says in caught.value.message
            assert caught.value.code == code


# --- Large answers ----------------------------------------------------------------------------------------------------


def test_large_answers_are_packed_where_the_client_takes_it(url: str) -> None:
    body = {"inputs": TEXTS * 4}
    plain = post(url, "/embed", body, **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    codings = {"gzip, deflate": "gzip", "br, gzip;q=0.5": "gzip", "gzip; q=0.0, br": None, "br": None, "gzip;q=0": None}
    for accepted, coding in codings.items():
        answer = post(url, "/embed", body, **{"Accept-Encoding": accepted})
        assert (answer.headers.get("content-encoding"), answer.json()) == (coding, plain.json())
        if coding:
            assert int(answer.headers["content-length"]) < len(plain.content) * 0.7
            assert answer.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in post(url, "/embed", {"inputs": "a"}, **{"Accept-Encoding": "gzip"}).headers
