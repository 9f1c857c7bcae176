"""`lines`: curves from queries to keys, as dark as the weights of the record."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from headwise import masks, plot
from headwise.errors import ArgumentError
from headwise.plot.bipartite import COLOURS, PITCH
from headwise.records import Seen

from .conftest import WORDS, make_record, weights_of, written


def test_the_lines_of_one_query_and_their_weights(seen: Seen) -> None:
    figure = plot.lines(seen, layer=1, head=2, row="sat")
    weights = weights_of(seen[1], 2)[2]
    shown = [i for i in range(6) if weights[i] >= 0.02 * weights.max()]
    (curves,) = figure.axes[0].collections
    places = [path.vertices[[0, -1], 1] / PITCH - 1.5 for path in curves.get_paths()]
    assert {round(place[0]) for place in places} == {2}
    assert sorted(round(place[1]) for place in places) == shown
    # As dark as the weight is large: 0.1 to 0.95.
    darkness = {round(place[1]): ink[3] for place, ink in zip(places, curves.get_edgecolors(), strict=True)}
    assert darkness == {i: pytest.approx(0.1 + 0.85 * weights[i] / weights.max()) for i in shown}
    texts = written(figure)
    assert [f"{weight:.3f}" for weight in weights] == [text for text in texts if text.startswith(("0.", "1."))]
    assert f"the strongest line is {weights.max():.4g}" in texts
    assert [text for text in texts if text in WORDS] == WORDS * 2


def test_several_heads_have_the_colours_of_their_numbers(seen: Seen) -> None:
    figure = plot.lines(seen, layer=0, head=[3, 1])
    (curves,) = figure.axes[0].collections
    assert {to_hex(ink[:3]) for ink in curves.get_edgecolors()} == {COLOURS[3], COLOURS[1]}
    assert "layer 0, heads 3, 1" in written(figure)
    largest = max(weights_of(seen[0], head).max() for head in (1, 3))
    assert f"the strongest line is {largest:.4g}" in written(figure)


def test_masked_and_hidden_keys_have_no_lines() -> None:
    record = make_record(4, 4, mask=masks.causal())
    (curves,) = plot.lines(record, scale="log").axes[0].collections
    ends = np.array([path.vertices[[0, -1], 1] for path in curves.get_paths()])
    assert (ends[:, 1] <= ends[:, 0] + 1e-9).all()
    (curves,) = plot.lines(record, hide_sink=True).axes[0].collections
    assert all(path.vertices[-1, 1] > 2 * PITCH for path in curves.get_paths())


def test_what_cannot_be_drawn_says_what_to_do(seen: Seen) -> None:
    with pytest.raises(ArgumentError, match=r"at most 500 queries and keys. Received: 501. Choose a part"):
        plot.lines(make_record(2, 501))
    with pytest.raises(ArgumentError, match="row: expected one of the drawn tokens"):
        plot.lines(seen, layer=0, row="mat", rows=slice(0, 3))
    with pytest.raises(ArgumentError, match="at least one head"):
        plot.lines(seen, layer=0, head=[])
    with pytest.raises(ArgumentError, match="width: expected at least"):
        plot.lines(seen, layer=0, width=0.5)
