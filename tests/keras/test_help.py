"""What help() says of a layer: each argument of its constructor, also where the docstring leaves that to the twin."""

from __future__ import annotations

import inspect
import re

import pytest

from headwise.keras import Bert, MultiHeadAttention
from headwise.keras.layer import TWINS, Layer


@pytest.mark.parametrize("cls", TWINS, ids=lambda cls: cls.__name__)
def test_every_argument_is_explained(cls: type[Layer]) -> None:
    doc = inspect.getdoc(cls) or ""
    lines = re.findall(r"^ {4}(\w[\w, \n]*):", doc[doc.index("Args:\n") :].split("\n\n")[0], flags=re.MULTILINE)
    explained = [name for line in lines for name in re.split(r",\s*", line)]
    assert len(explained) == len(set(explained))
    assert set(explained) == set(inspect.signature(cls).parameters) - {"kwargs"}


def test_what_differs_is_in_the_place_of_what_the_twin_says() -> None:
    doc = MultiHeadAttention.__doc__ or ""
    assert "num_heads: H.\n" in doc  # of the twin
    assert "one of `headwise.keras.positions`" in doc
    assert "headwise.nn.positions" not in doc
    assert doc.index("positions:") < doc.index("projection:") < doc.index("seed:")


def test_a_subclass_has_no_twin() -> None:
    class Mine(Bert):
        """Mine."""

    assert Mine not in TWINS
    assert Mine.__doc__ == "Mine."
