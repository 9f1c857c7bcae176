"""Rows of columns <-> arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headwise.errors import RequestRefused
from headwise.server.interface import Description
from headwise.server.protocols.columns import flat, make_array, make_arrays, make_rows
from headwise.tasks.columns import Column

TEXT, IMAGE = Column("text", "BYTES"), Column("image", "BYTES", binary=True)
NAMES, SIZE = Column("names", "BYTES", (-1,), optional=True), Column("size", "FP32", (), optional=True)
GRID = Column("grid", "INT32", (-1, -1))


def described(*outputs: Column) -> Description:
    return Description(task="tensors", platform="test", inputs=(TEXT,), outputs=outputs)


def test_rows_hold_python_values_and_arrays() -> None:
    arrays = {
        "text": np.array([b"a", "ü"], np.object_),
        "image": np.array([b"\xff", "ü"], np.object_),
        "names": np.array([[b"a", b"b"], ["c", "d"]], np.object_),
        "size": np.array([1.5, 2], np.float32),
    }
    first, second = make_rows((TEXT, IMAGE, NAMES, SIZE), arrays)
    assert (first["text"], first["image"], first["size"]) == ("a", b"\xff", 1.5)
    assert (second["text"], second["image"]) == ("ü", "ü".encode())
    assert type(second["size"]) is float
    assert first["names"].tolist() == ["a", "b"]


def test_says_which_row_is_not_text() -> None:
    names = np.array([[b"a", b"b"], [b"c", b"\xff"]], np.object_)
    with pytest.raises(RequestRefused, match=r"input names, row 1 \(from 0\): it is not UTF-8 text"):
        make_rows((NAMES,), {"names": names})


def test_shorter_rows_end_with_nothing() -> None:
    rows = [{"grid": np.array([[1, 2, 3]])}, {"grid": np.array([[4], [5]])}]
    grid = make_arrays(described(GRID), rows)["grid"]
    assert grid.tolist() == [[[1, 2, 3], [0, 0, 0]], [[4, 0, 0], [5, 0, 0]]]
    assert grid.dtype == np.int32


def test_an_output_that_a_row_lacks_is_nothing_and_one_that_all_lack_is_left_out() -> None:
    rows = [{"names": np.array(["a", "ü"], np.object_)}, {"size": 2.0}]
    found = make_arrays(described(NAMES, SIZE), rows)
    assert found["names"].tolist() == [[b"a", "ü".encode()], [b"", b""]]
    assert math.isnan(found["size"][0])
    assert list(make_arrays(described(NAMES, SIZE), rows[:1])) == ["names"]
    assert list(make_arrays(described(NAMES, SIZE), rows[:1], ["size"])) == ["size"]


def test_a_model_that_was_replaced_while_it_answered_is_to_be_asked_again() -> None:
    with pytest.raises(RequestRefused, match="replaced") as refused:
        make_arrays(described(TEXT), [{"other": "a"}])
    assert refused.value.kind == "unavailable"


def test_nested_lists_have_the_shape_that_is_said_or_none() -> None:
    assert flat([[1, 2], [3, 4]], [2, 2]) == [1, 2, 3, 4]
    assert flat([[1, 2], [3]], [2, 2]) is None
    assert flat([1, 2], [2, 2]) is None
    assert flat([], [0, 5]) == []


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT32", [2**31]),
        ("INT64", [-(2**63) - 1]),
        ("FP32", [1e39]),
        ("FP64", [10**400]),
        ("BOOL", [0]),
        ("FP32", [True]),
    ],
)
def test_values_that_a_dtype_cannot_hold_are_refused(datatype: str, values: list[object]) -> None:
    with pytest.raises(RequestRefused, match="input x: "):
        make_array(Column("x", datatype), values, "input x")  # type: ignore[arg-type]
