"""A row that a model fails on fails alone, and nothing that it says gets into the log."""

from __future__ import annotations

import logging

import pytest

from headwise.errors import RequestRefused
from tests.server.pool.conftest import Start, until


async def test_only_the_rows_fail_that_are_to_blame(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    pool = await start(max_tokens=3)
    rows = [{"text": str(number)} for number in range(12)]
    rows[2]["do"] = rows[7]["do"] = "raise"
    rows[4]["do"] = "refuse"
    rows[5]["do"] = "be unreadable"
    rows[9]["text"] = "one two three four"
    with caplog.at_level(logging.ERROR, "headwise.server"):
        answers = await pool.answer("m", None, rows)
        await until(lambda: len(caplog.records) == 2)
    kinds = {at: answer.kind for at, answer in enumerate(answers) if isinstance(answer, RequestRefused)}
    assert kinds == {2: "failed", 4: "bad_input", 5: "bad_input", 7: "failed", 9: "too_large"}
    assert all(answers[at]["text"] == rows[at]["text"] for at in range(12) if at not in kinds)
    assert str(answers[2]) == "the model failed on this row; see the server's log"
    assert str(answers[4]) == "expected another text"
    assert str(answers[5]) == "expected a readable text"
    assert str(answers[9]) == "expected at most 3 tokens. Received: 4 tokens"
    assert pool.statistics.of("m", "1").outcomes == {"ok": 7, "failed": 2, "bad_input": 2, "too_large": 1}
    record = caplog.records[0]
    assert record.getMessage() == "the model failed on a row"
    assert record.fields["raised"] == "KeyError"
    assert any("models.py" in line for line in record.fields["at"])
    assert "secret" not in str(record.__dict__)


async def test_rows_that_are_not_dicts_are_refused(start: Start) -> None:
    pool = await start()
    for asked in (pool.answer("m", None, [{"text": "a"}, [1]]), pool.explain("m", None, "a")):  # type: ignore
        with pytest.raises(RequestRefused, match=r"^a row: expected an object, .* Received: (list|str)$"):
            await asked


async def test_a_row_of_too_many_characters_is_refused_before_it_is_tokenized(start: Start) -> None:
    pool = await start(max_tokens=3)
    (answer,) = await pool.answer("m", None, [{"text": "a" * 97}])
    assert (answer.kind, str(answer)) == ("too_large", "expected at most 96 characters. Received: 97 characters")
    (answer,) = await pool.answer("m", None, [{"text": "a" * 96}])
    assert answer["text"] == "a" * 96


async def test_a_row_that_cannot_be_sent_fails_and_the_worker_goes_on(start: Start) -> None:
    pool = await start()
    with pytest.raises(RequestRefused, match="cannot be sent to a worker") as caught:
        await pool.answer("m", None, [{"text": lambda: None}])
    assert caught.value.kind == "failed"
    assert (await pool.answer("m", None, [{"text": "a"}]))[0]["text"] == "a"


async def test_an_answer_that_cannot_be_sent_fails_and_the_worker_goes_on(start: Start) -> None:
    pool = await start()
    (answer,) = await pool.answer("m", None, [{"text": "a", "do": "answer a lock"}])
    assert isinstance(answer, RequestRefused)
    assert answer.kind == "failed"
    assert (await pool.answer("m", None, [{"text": "a"}]))[0]["text"] == "a"
