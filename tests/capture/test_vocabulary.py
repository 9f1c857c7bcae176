"""How many token ids a model knows: the rows of its table of tokens, whatever else it has tables of."""

from __future__ import annotations

from torch import nn

from headwise.capture.vocabulary import vocabulary_size


def test_a_longer_table_of_positions_is_not_it() -> None:
    assert vocabulary_size(nn.ModuleList([nn.Embedding(30, 4), nn.Embedding(512, 4)])) == 30


def test_the_table_that_the_model_names() -> None:
    class PositionsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.words = nn.Embedding(512, 4), nn.Embedding(30, 4)

        def get_input_embeddings(self) -> nn.Module:
            return self.words

    assert vocabulary_size(PositionsFirst()) == 30


def test_a_model_that_cannot_name_it() -> None:
    class Unnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 4)

        def get_input_embeddings(self) -> nn.Module:
            raise NotImplementedError

    assert vocabulary_size(Unnamed()) == 30


def test_a_model_without_ids() -> None:
    assert vocabulary_size(nn.Linear(4, 4)) is None
