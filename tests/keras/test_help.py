"""What help() says of a layer: each argument of its constructor, also where the docstring leaves that to the twin."""

from __future__ import annotations

import inspect
import re

import pytest

from headwise import nn
from headwise.keras import Bert, EncoderLayer, MultiHeadAttention
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
    assert "num_heads: H, the number of query heads.\n" in doc  # of the twin
    assert "one of `headwise.keras.positions`" in doc
    assert "headwise.nn.positions" not in doc
    assert doc.index("positions:") < doc.index("projection:") < doc.index("seed:")


def test_the_signature_has_the_options_of_the_twin_and_then_its_own() -> None:
    shown = inspect.signature(EncoderLayer)
    options = [name for name in inspect.signature(nn.EncoderLayer).parameters if name not in ("device", "dtype")]
    assert list(shown.parameters) == [*options, "seed", "kwargs"]
    assert shown.parameters["norm_eps"].default == 1e-5
    assert shown.parameters["attention"].annotation == "keras.layers.Layer | None"
    with pytest.raises(TypeError, match="'dim'"):
        EncoderLayer()
    with pytest.raises(TypeError, match="too many positional"):
        EncoderLayer(8, 2, None)
    with pytest.raises(ValueError, match="device"):
        EncoderLayer(8, 2, device="cpu")


def test_a_subclass_has_its_own_constructor() -> None:
    class Mine(MultiHeadAttention):
        def __init__(self, width: int, **kwargs: object) -> None:
            super().__init__(width, 2, **kwargs)

    layer = Mine(8, scale=0.5)
    assert list(inspect.signature(Mine).parameters) == ["width", "kwargs"]
    assert (layer.dim, layer.num_heads, layer.scale, layer.get_config()["width"]) == (8, 2, 0.5, 8)


def test_a_subclass_has_no_twin() -> None:
    class Mine(Bert):
        """Mine."""

    assert Mine not in TWINS
    assert Mine.__doc__ == "Mine."
