"""The encoder-decoder: its parts, that no token sees a later one or padding, and each step on a cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.models import Bert, BertConfig
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.nn import Cache

POSITIONS = pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned"])


def make(seed: int = 0, **options: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    small = {"vocab_size": 11, "dim": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 16}
    return EncoderDecoder(EncoderDecoderConfig(**{**small, **options})).double().eval()


def texts(batch: int, length: int, size: int = 11) -> torch.Tensor:
    return torch.randint(0, size, (batch, length))


def test_it_is_its_parts() -> None:
    model = make(positions="sinusoidal")
    source, target = texts(2, 5), texts(2, 3)
    embedded = [
        model.embedding.weight[ids] * math.sqrt(16) + model.positions(torch.arange(ids.shape[1])).double()  # type: ignore[misc]
        for ids in (source, target)
    ]
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    hidden = model.decoder(embedded[1], model.encoder(embedded[0]), mask=causal)
    torch.testing.assert_close(model(source, target), linear(hidden, model.embedding.weight))


COPIES = pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])


@COPIES
@POSITIONS
def test_a_later_token_and_what_is_padding_change_nothing(positions: str, copies: bool) -> None:
    model = make(positions=positions, copies=copies)
    source, target = texts(2, 5), texts(2, 4)
    padding = torch.tensor([[True] * 5, [True, True, True, False, False]])
    found = model(source, target, padding)
    other_target, other_source = target.clone(), source.clone()
    other_target[:, -1] = (other_target[:, -1] + 1) % 11
    other_source[1, 3:] = (other_source[1, 3:] + 1) % 11
    changed = model(other_source, other_target, padding)
    torch.testing.assert_close(changed[:, :-1], found[:, :-1])
    torch.testing.assert_close(model(source[1:, :3], target[1:]), found[1:])


@COPIES
@POSITIONS
def test_steps_on_a_cache_are_the_whole(positions: str, copies: bool) -> None:
    model = make(positions=positions, copies=copies)
    source, target = texts(3, 5), texts(3, 6)
    padding = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    memory, cache = model.encode(source, padding), Cache()
    steps = [
        model.logits(model.decode(target[:, i : i + 1], memory, padding, cache), memory, source, padding)
        for i in range(6)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), model(source, target, padding))


@COPIES
def test_only_some_places(copies: bool) -> None:
    model = make(copies=copies)
    source, target = texts(2, 5), texts(2, 3)
    at = torch.tensor([0, 4, 5])
    torch.testing.assert_close(model(source, target, at=at), model(source, target).flatten(0, 1)[at])


def test_vocabularies_are_shared_or_separate() -> None:
    shared, separate = make(), make(source_vocab_size=7)
    assert shared.config.is_shared
    assert shared.source_embedding is None
    assert not separate.config.is_shared
    assert separate.source_embedding.weight.shape == (7, 16)
    assert separate(texts(1, 4, 7), texts(1, 2)).shape == (1, 2, 11)
    tensors = [tensor.data_ptr() for tensor in shared.state_dict().values()]
    assert len(set(tensors)) == len(tensors)  # safetensors refuses a tensor under two names


def test_a_bert_as_the_encoder() -> None:
    bert = BertConfig(vocab_size=13, dim=8, num_layers=1, num_heads=2, ffn_dim=8, max_positions=6, pooler=False)
    model = make(bert=bert)
    padding = torch.tensor([[True] * 5, [True, True, False, False, False]])
    source, target = texts(2, 5, 13), texts(2, 3)
    assert not model.config.is_shared
    assert model.encode(source, padding).shape == (2, 5, 8)
    torch.testing.assert_close(model(source[1:, :2], target[1:]), model(source, target, padding)[1:])


def test_the_embeddings_of_a_bert_serve_source_target_and_output() -> None:
    bert = BertConfig(vocab_size=13, dim=16, num_layers=1, num_heads=2, ffn_dim=8, max_positions=6, pooler=False)
    model = make(bert=bert, vocab_size=None, copies=True)
    assert model.config.is_shared
    assert model.target_embedding is model.encoder.embeddings.word  # type: ignore[union-attr]
    assert model(texts(2, 5, 13), texts(2, 3, 13)).shape == (2, 3, 13)
    tensors = [tensor.data_ptr() for tensor in model.state_dict().values()]
    assert len(set(tensors)) == len(tensors)
    given = Bert(bert)
    assert EncoderDecoder(model.config, given).encoder is given


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 15}, "dim: expected a multiple of num_heads=2"),
        ({"dim": 6}, "even dim / num_heads"),
        ({"positions": "alibi"}, "positions"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"bert": BertConfig(), "source_vocab_size": 3}, "source_vocab_size"),
        ({"vocab_size": None}, "where there is no bert"),
        ({"vocab_size": None, "bert": BertConfig()}, "dim: expected 768, as the embeddings of bert have it"),
    ],
)
def test_shapes_that_no_model_has(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EncoderDecoderConfig(**{"vocab_size": 11, "num_heads": 2, **options})


def test_what_it_does_not_read() -> None:
    model = make(positions="learned", max_positions=4)
    with pytest.raises(ShapeError, match=r"source_ids: expected \[B, S\]"):
        model(texts(1, 3)[0], texts(1, 2))
    with pytest.raises(DtypeError, match="target_ids"):
        model(texts(1, 3), texts(1, 2).float())
    with pytest.raises(ArgumentError, match=r"target_ids: expected ids from 0 to 10. Received: target_ids with 11"):
        model(texts(1, 3), torch.tensor([[11]]))
    with pytest.raises(ArgumentError, match="expected 0 to 3"):
        model(texts(1, 5), texts(1, 2))
