"""The answers are those of `task.predict`, in the words of each task; and what each task has of its own."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.server.interfaces.answering import Answering
from headwise.tasks.rows.pictures import MOST_PIXELS
from tests.server.interfaces.conftest import asked, series
from tests.tasks.problems import coloured_patches, copied, looked_up, marked, spans, twice

Opened = Callable[[str], Answering[Any]]


def task_of(interface: Answering[Any]) -> Any:
    return interface.task  # type: ignore[attr-defined]


# --- Labels -----------------------------------------------------------------------------------------------------------


def test_classify_gives_what_the_task_predicts(opened: Opened) -> None:
    interface = opened("classify")
    texts = [*marked(8, seed=1)["text"], "ant", "bee cat " * 400]
    rows = asked(interface, [{"text": text} for text in texts])
    labels = interface.description.labels
    assert labels == tuple(task_of(interface).labels)
    for row, predicted in zip(rows, task_of(interface).predict(texts), strict=True):
        assert row["label"] == predicted["label"]
        assert row["probability"] == pytest.approx(predicted["probability"], abs=1e-6)
        assert row["probabilities"] == pytest.approx([predicted[f"probability of {name}"] for name in labels], abs=1e-6)

    interface = opened("classify")
    assert interface.tokens(interface.read({"text": "ant " * 3000})) == 3002
    (row,) = asked(interface, [{"text": "ant " * 3000}])
    assert row["label"] in interface.description.labels


def test_classify_of_pairs_takes_both_texts(opened: Opened) -> None:
    interface, given = opened("pairs"), looked_up(6, seed=1)
    pairs = list(zip(given["text"], given["question"], strict=True))
    rows = asked(interface, [{"text": first, "text_pair": second} for first, second in pairs])
    predicted = task_of(interface).predict(pairs)
    assert [row["label"] for row in rows] == [each["label"] for each in predicted]
    assert [row["probability"] for row in rows] == pytest.approx([each["probability"] for each in predicted], abs=1e-6)


# --- Words of a text --------------------------------------------------------------------------------------------------


def test_answer_gives_what_the_task_predicts(opened: Opened) -> None:
    interface, given = opened("answer"), spans(6, seed=1)
    rows = asked(interface, [{"question": each["question"], "context": each["context"]} for each in given])
    for row, predicted in zip(
        rows, task_of(interface).predict([(each["question"], each["context"]) for each in given]), strict=True
    ):
        assert row == {**predicted, "start": -1 if predicted["start"] is None else predicted["start"]}


def test_answer_says_minus_one_where_there_is_none(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    interface = opened("answer")
    nothing = {"answer": "", "start": None, "probability": 0.5}
    monkeypatch.setattr(task_of(interface), "_answers", lambda contexts, windows: [nothing])
    (row,) = asked(interface, [{"question": "ant", "context": "bee"}])
    assert row == {"answer": "", "start": -1, "probability": 0.5}


# --- Texts that are written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "column"), [("translate", "translation"), ("summarize", "summary")])
def test_texts_are_those_that_the_task_writes(opened: Opened, name: str, column: str) -> None:
    interface, texts = opened(name), copied(5, seed=1)["source"]
    rows = asked(interface, [{"text": text} for text in texts])
    for row, text in zip(rows, texts, strict=True):  # also where they are drawn, whichever place a row has
        (predicted,) = task_of(interface).predict([text])
        assert row[column] == predicted[column]
        assert row["score"] == pytest.approx(predicted["score"], rel=1e-4)


def test_a_dialogue_is_its_lines(opened: Opened) -> None:
    interface = opened("reply")
    rows = asked(interface, [{"text": "hi\nho"}, {"text": "  hi \n\n ho\n"}])
    assert rows[0] == rows[1]
    assert interface.read({"text": "  hi \n\n ho\n"}).text == "hi\nho"


@pytest.mark.parametrize("name", ["translate", "summarize", "reply", "causal"])
def test_the_pieces_of_a_stream_are_the_text(opened: Opened, name: str) -> None:
    interface = opened(name)
    assert interface.description.streams
    (row,) = asked(interface, [{"text": "ant bee cat"}])
    written = row[interface.description.outputs[0].name]
    assert "".join(interface.stream(interface.read({"text": "ant bee cat"}))) == written


@pytest.mark.parametrize("name", ["translate", "causal", "classify", "masked"])
def test_a_text_that_is_the_name_of_a_file_is_a_text(
    opened: Opened, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface, text = opened(name), "[MASK] dog.txt"
    (nowhere,) = asked(interface, [{"text": text}])
    pieces = list(interface.stream(interface.read({"text": text}))) if interface.description.streams else []
    monkeypatch.chdir(tmp_path)
    Path(text).write_text("secret\n" * 3)
    assert asked(interface, [{"text": text}])[0].keys() == nowhere.keys()
    assert (list(interface.stream(interface.read({"text": text}))) if interface.description.streams else []) == pieces
    assert "secret" not in interface.page(interface.read({"text": text}))


@pytest.mark.parametrize("name", ["classify", "masked", "forecast"])
def test_what_writes_no_text_streams_none(opened: Opened, name: str) -> None:
    interface = opened(name)
    assert not interface.description.streams
    with pytest.raises(ArgumentError, match="does not generate text piece by piece"):
        interface.stream(interface.read(interface.description.example or {}))


def test_a_row_that_cannot_be_streamed_is_told_when_it_is_read(opened: Opened) -> None:
    with pytest.raises(ArgumentError, match=r"text: expected a text\. Received: an empty text"):
        opened("translate").read({"text": " "})


def test_masked_fills_what_the_task_fills_and_tells_each_text_without_a_mask(opened: Opened) -> None:
    interface = opened("masked")
    texts = [text.replace("ant", "[MASK]").replace("bee", "[MASK]") for text in twice(12, seed=1)]
    texts = [text for text in texts if "[MASK]" in text][:4]
    found = interface.answer([interface.read({"text": text}) for text in [*texts, "ant bee"]])
    assert found[:-1] == [each for text in texts for each in task_of(interface).predict([text])]
    assert isinstance(found[-1], ArgumentError)
    assert "expected a text with [MASK]" in str(found[-1])


def test_causal_goes_on_as_the_task_does(opened: Opened) -> None:
    interface, texts = opened("causal"), ["ant bee", "cat", "dog elk fox " * 9]
    rows = asked(interface, [{"text": text} for text in texts])
    assert rows == [each for text in texts for each in task_of(interface).predict([text])]


# --- Series -----------------------------------------------------------------------------------------------------------


def past(rows: dict[str, list[Any]]) -> np.ndarray:
    return np.array([rows["x"], rows["y"]]).T


def test_forecast_gives_what_the_task_predicts_of_a_file_with_these_rows(opened: Opened) -> None:
    interface, rows = opened("forecast"), series(30, seed=3)
    given = [{"history": past(rows), "time": np.array(rows["time"], dtype=object)}, {"history": past(rows)[:8]}]
    with_times, shortest = asked(interface, given)
    predicted = task_of(interface).predict(rows)
    for place, column in enumerate("xy"):
        mine = [each for each in predicted if each["column"] == column]
        assert with_times["forecast"][:, place] == pytest.approx([each["forecast"] for each in mine], rel=1e-5)
        quantiles = [[each[share] for share in ("0.1", "0.5", "0.9")] for each in mine]
        assert with_times["quantiles"][:, place] == pytest.approx(np.array(quantiles), rel=1e-5)
        assert with_times["time"].tolist() == [each["time"] for each in mine]
    of_few = task_of(interface).predict({name: cells[:8] for name, cells in rows.items() if name != "time"})
    assert shortest["forecast"].T.ravel() == pytest.approx([each["forecast"] for each in of_few], rel=1e-5)
    assert shortest["time"].tolist() == ["1", "2", "3", "4"]


def test_a_series_that_was_learned_has_the_scale_that_it_had_then(opened: Opened) -> None:
    interface, rows = opened("series"), series(30, seed=3)
    history = past(rows) * [1, 100]
    columns = {"time": rows["time"], "x": history[:, 0].tolist(), "y": history[:, 1].tolist()}
    given = [{"history": history}, *({"history": history, "series": name} for name in ("first", "second", "new"))]
    found = [row["forecast"] for row in asked(interface, given)]
    for forecast, name in zip(found, ["", "first", "second", "new"], strict=True):
        predicted = task_of(interface).predict({**columns, "name": [name] * 30})
        assert forecast.T.ravel() == pytest.approx([each["forecast"] for each in predicted], rel=1e-4)
    assert not np.array_equal(found[1], found[2])
    assert "quantiles" not in {column.name for column in interface.description.outputs}


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        ({"history": np.ones((7, 2))}, ArgumentError, "history: expected at least 8 rows. Received: 7"),
        ({"history": np.ones((9, 3))}, ShapeError, r"history: expected \[-1, 2\].* Received: \[9, 3\]"),
        ({"history": np.ones(9)}, ShapeError, r"Received: \[9\]"),
        ({"history": [[1.0], [1.0, 2.0]]}, ShapeError, "lists of different lengths"),
        ({"history": np.full((9, 2), "1")}, DtypeError, "history: expected FP64"),
        ({"history": [[1.0, 2.0]] * 8 + [[1.0, np.nan]]}, ArgumentError, "Received: nan in row 8 .*column 'y'"),
        ({"history": [[1.0, np.inf]] * 8}, ArgumentError, "Received: inf in row 0"),
        ({"history": np.ones((8, 2)), "time": np.array(["1"], object)}, ArgumentError, "time: expected"),
        ({"history": np.ones((8, 2)), "time": np.array(["x"] * 8, object)}, ArgumentError, "expected timestamps"),
        ({"history": np.ones((8, 2)), "time": np.array(["2024-01-01"] * 8, object)}, ArgumentError, "comes twice"),
        ({"history": np.ones((8, 2)) * 1e300}, ArgumentError, "too large for a forecast"),
    ],
)
def test_a_history_that_cannot_be_used(opened: Opened, row: dict[str, Any], error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        opened("forecast").read(row)


# --- Images and texts -------------------------------------------------------------------------------------------------


def png(image: np.ndarray, kind: str = "PNG") -> bytes:
    written = io.BytesIO()
    Image.fromarray(image).save(written, kind)
    return written.getvalue()


def test_match_gives_what_the_task_predicts_of_pairs_images_and_texts(opened: Opened) -> None:
    interface = opened("match")
    images, captions, _ = coloured_patches(3, seed=1)
    given: list[dict[str, Any]] = [
        {"image": png(images[0]), "text": captions[0]},
        {"text": captions[1]},
        {"image": png(images[2])},
        {"image": png(images[1]), "text": captions[0]},
    ]
    rows = asked(interface, given)
    both = [{"image": images[0], "text": captions[0]}, {"image": images[1], "text": captions[0]}]
    first, of_text, of_image, last = task_of(interface).predict([both[0], captions[1], images[2], both[1]])
    for row, expected in ((rows[0], first), (rows[3], last)):
        assert row == pytest.approx(expected, rel=1e-4)
    for row, expected, wants in ((rows[1], of_text, "image"), (rows[2], of_image, "text")):
        assert row["best"].tolist() == [expected[f"{wants}{rank}"] for rank in ("", " 2", " 3")]
        assert row["matches"] == pytest.approx([expected[f"match{rank}"] for rank in ("", " 2", " 3")], rel=1e-4)
        assert row["match"] == pytest.approx(row["matches"][0])
        assert "similarity" not in row


def bomb(width: int, height: int) -> bytes:
    """A PNG of few bytes that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("image", "error", "says"),
    [
        (b"", ArgumentError, "expected a file of one of PNG"),
        (b"no image", ArgumentError, "Received: 8 bytes that Pillow cannot decode"),
        (png(np.zeros((8, 8, 3), np.uint8))[:45], ArgumentError, "damaged"),
        (png(np.zeros((8, 8, 3), np.uint8), "TIFF"), ArgumentError, "PNG"),
        (bomb(10_000, 5_001), ArgumentError, f"at most {MOST_PIXELS:,} pixels. Received: 10,000 × 5,001"),
        (bomb(60_000, 60_000), ArgumentError, "image: "),
        ("a path.png", DtypeError, "expected the bytes of a file. Received: str"),
    ],
)
def test_an_image_that_cannot_be_used(opened: Opened, image: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        opened("match").read({"image": image, "text": "red at 1"})
