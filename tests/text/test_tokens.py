"""A text cut at its tokens: every character is shown once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headwise.text import Tokens, as_tokens
from headwise.text.labels import characters
from headwise.text.tokens import cut_at_tokens

PART = re.compile(r"\((\d+)/\d+\)")


def joined(tokens: Tokens) -> str:
    """What is shown of a text, without characters that have a mark such as (2/2)."""
    shown = "".join(gap + piece for gap, piece in zip(*cut_at_tokens(tokens), strict=True))
    while found := PART.search(shown):
        start = characters(shown)[found.start() - 1][0]
        shown = shown[:start] + shown[found.end() :]
    return shown


def merging(text: str, first: int, last: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that makes one token of the bytes first … last - 1 of `text`, and of others one each."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0][first:last]
    merges = [(spelt[:i], spelt[i]) for i in range(1, len(spelt))]
    names = dict.fromkeys([*letters, *(a + b for a, b in merges)])
    backend = Backend(models.BPE({name: i for i, name in enumerate(names)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("text", "first", "last", "pieces"),
    [
        ("Seán", 3, 5, ["S", "e", "á", "á(2/2)n"]),
        ("éèa", 1, 4, ["é", "é(2/2)è", "a"]),
        ("éèa", 1, 3, ["é", "é(2/2)è", "è(2/2)", "a"]),
        ("naé", 1, 3, ["n", "aé", "é(2/2)"]),
    ],
    ids=["a tail and a letter", "a tail and a character", "a tail and a head", "a letter and a head"],
)
def test_tokens_that_share_a_character(text: str, first: int, last: int, pieces: list[str]) -> None:
    tokenizer = merging(text, first, last)
    for tokens in (*as_tokens(tokenizer(text), text), *as_tokens(tokenizer("猫" + text), "猫" + text)):
        assert joined(tokens) == tokens.text
        assert cut_at_tokens(tokens)[1][-len(pieces) :] == pieces


def test_special_tokens_in_the_text(gpt2: PreTrainedTokenizerFast) -> None:
    text = "the <mask> cat"
    for tokens in (*as_tokens(gpt2(text), text), *as_tokens(gpt2(text))):
        assert cut_at_tokens(tokens) == (["", "", "", ""], ["the", " ", "<mask>", " cat"])


def test_spaces_without_offsets_are_shown_once(roberta: PreTrainedTokenizerFast) -> None:
    (tokens,) = as_tokens(roberta("the  é"), "the  é")
    assert cut_at_tokens(tokens) == ([""] * 5, ["the", " ", " ", "é", "é(2/2)"])


def test_an_added_space_is_not_the_character_after_it(t5: PreTrainedTokenizerFast) -> None:
    (tokens,) = as_tokens(t5("猫 cat"), "猫 cat")
    assert tokens.labels[1:3] == ("␣", "猫")
    assert cut_at_tokens(tokens)[1][1:3] == ["␣", "猫"]


@given(text=st.text(st.sampled_from("the cat é猫🐈\n\t .,<mask>"), max_size=30))
def test_any_text(request: pytest.FixtureRequest, text: str) -> None:
    for name in ("gpt2", "roberta", "t5", "llama2", "clip", "bert"):
        tokenizer = request.getfixturevalue(name)
        (tokens,) = as_tokens(tokenizer(text), text) if text else as_tokens([[]])
        _, pieces = cut_at_tokens(tokens)
        for piece, (start, stop) in zip(pieces, tokens.offsets, strict=True):
            assert piece == text[start:stop] or PART.search(piece) or start == stop, (name, pieces)
