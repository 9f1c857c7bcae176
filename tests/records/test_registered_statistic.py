"""A statistic made outside the package is seen wherever those of the package are."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import headwise
from headwise import masks
from headwise.cli import main
from headwise.errors import ArgumentError, RecordError
from headwise.records import Seen, Statistic
from headwise.records.statistics import STATISTICS, Column, WeightTile, register
from headwise.viewer import facts_of, inputs_of


@pytest.fixture
def above() -> Iterator[type[Statistic]]:
    """How many weights of a row are above a threshold."""

    @register
    @dataclasses.dataclass
    class Above(Statistic):
        name = "above"
        unit = "keys"
        sentence = "How many keys have more than 40% of a query's weight."
        column = Column("above", options={"threshold": 0.4})

        threshold: float = 0.5

        def update(self, tile: WeightTile) -> None:
            self.answer[:, tile.rows] = (tile.weights > self.threshold).sum(-1)

    yield Above
    del STATISTICS["above"]


@pytest.fixture
def seen() -> Seen:
    """One head whose rows are 1; 1/3 2/3; 1/7 2/7 4/7; 1/8 2/8 4/8 1/8."""
    k = torch.tensor([1.0, 2.0, 4.0, 1.0]).log()[None, None, :, None]
    return Seen([headwise.attention(torch.ones_like(k), k, k, mask=masks.causal(), record=True)[1]])


def test_the_record_answers_it_alone_and_with_all_others(above: type[Statistic], seen: Seen) -> None:
    record = seen[0]
    assert record.statistics("above").above[0, 0].tolist() == [1, 1, 1, 0]  # 4/8 is not above 1/2
    assert record.statistics("above", "entropy", threshold=0.1).above[0, 0].tolist() == [1, 2, 3, 4]
    everything = record.statistics(threshold=0.2)
    assert everything.above[0, 0].tolist() == [1, 2, 2, 2]
    assert everything.entropy.equal(record.entropy())
    assert record.statistics("entropy").above is None
    assert list(seen.statistics("above")) == seen.layers


def test_the_summary_the_command_and_the_page_show_it(
    above: type[Statistic], seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = seen.summary()
    assert row.above == row.numbers["above"] == 1  # every row has one weight above 0.4
    assert list(seen.to_pandas()["above"]) == [1.0]
    caption = " ".join(str(seen.summary()).split())
    assert "above: how many keys have more than 40% of a query's weight" in caption

    seen.save(tmp_path / "run.hw")
    assert main(["stats", str(tmp_path / "run.hw"), "--csv", str(tmp_path / "rows.csv")]) == 0
    (line,) = (each.split() for each in capsys.readouterr().out.splitlines() if "→" in each and each.split()[0] == "0")
    assert line[line.index("→") - 2] == "1.0"
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert [each["above"] for each in csv.DictReader(file)] == ["1.0"]

    facts = facts_of(inputs_of(seen), title="")
    expected = {"key": "above", "name": "above", "unit": "keys", "about": above.sentence}
    assert expected in facts["statistics"]
    assert facts["inputs"][0]["stacks"][0]["layers"][0]["stats"]["above"] == [1.0]


def test_a_watch_computes_it_but_does_not_know_it_of_a_generation(above: type[Statistic]) -> None:
    class Step(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> None:
            headwise.attention(q, k, k, mask=masks.causal())

    k = torch.tensor([1.0, 2.0, 4.0, 1.0]).log()[None, None, :, None]
    with headwise.watch(model := Step(), statistics={"above": {"threshold": 0.1}}, keep=False) as seen:
        model(torch.ones_like(k[:, :, :3]), k[:, :, :3])
        assert seen[0].statistics("above").above[0, 0].tolist() == [1, 2, 3]
        model(torch.ones_like(k[:, :, 3:]), k)
    assert seen[0].lse.shape == (1, 1, 4)
    with pytest.raises(RecordError, match="above of a generation does not follow from its steps"):
        seen[0].statistics("above")


@pytest.mark.parametrize("name", ["entropy", "two words"])
def test_a_name_that_cannot_be_had_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"must be a new identifier. Received: name='{name}'"):
        register(type("Other", (Statistic,), {"name": name}))


def test_only_one_statistic_overwrites_the_weights() -> None:
    with pytest.raises(ArgumentError, match=r"only one statistic can overwrite the weights"):
        register(type("Sorted", (Statistic,), {"name": "sorted", "overwrites": "weights"}))
    assert "sorted" not in STATISTICS


def test_an_option_that_no_statistic_has_is_refused(seen: Seen) -> None:
    with pytest.raises(ArgumentError, match=r"the options are rows, first_keys, .*, top. Received: tops"):
        seen[0].statistics("top", tops=3)
    with pytest.raises(ArgumentError, match=r"top must be at least 1"):  # of one that was not asked for
        seen[0].statistics("entropy", top=0)


def test_without_it_nothing_is_left(seen: Seen) -> None:
    assert not hasattr(seen[0].statistics(), "above")
    (row,) = seen.summary()
    with pytest.raises(AttributeError, match="above"):
        row.above  # noqa: B018
