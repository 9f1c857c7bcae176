"""Tokens from true encodings of every kind of tokenizer, with their text and without; the oracle is the text itself."""

from __future__ import annotations

import re

import pytest
import tokenizers
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import BatchEncoding, PreTrainedTokenizerFast

from headwise.errors import ArgumentError, DtypeError
from headwise.models.checkpoint import default_model
from headwise.text import Patches, Tokenizer, Tokens, as_tokens
from tests.text.conftest import byte_level
from tests.versions import since

# A combining mark behind a space is shown on that space, which some offsets leave out: too odd to have a rule.
NO_MARKS = st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me"], exclude_characters="\u200dĠġ")
TEXTS = st.text(NO_MARKS, max_size=20) | st.text(st.sampled_from("the cat 猫我é🐈👨🇫🇷\n\t .,'!3नि한"), max_size=40)


def beyond_ascii(text: str) -> bool:
    """Whether its tokens show that their letters are bytes, and none of it is taken for a special token."""
    return not text.isascii() and not re.search(r"<[|｜]", text)


def names(tokenizer: PreTrainedTokenizerFast, batch: BatchEncoding) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"]]


@pytest.mark.parametrize(
    ("names", "text", "words"),
    [
        (list("to be\nor"), "to be\nor", ("to", "be", "⏎", "or")),
        (["to", " be", " or"], "to be or", ("to", "be", "or")),
        (["to", "be", "or"], "to be or", ("to", "be", "or")),  # no name shows a space: one is between any two
    ],
)
def test_names_that_show_their_spaces_are_joined_without_others(
    names: list[str], text: str, words: tuple[str, ...]
) -> None:
    (tokens,) = as_tokens(names)
    assert tokens.text == text
    assert tokens.words().labels == words


class TestByteLevel:
    TEXT = "the cats 猫🐈é\n<mask>  the"
    LABELS = (
        "the", "␣cat", "s", "␣猫", "🐈(1/4)", "🐈(2/4)", "🐈(3/4)", "🐈(4/4)", "é(1/2)", "é(2/2)", "⏎",
        "<mask>", "␣", "␣the",
    )  # fmt: skip

    def test_by_hand(self, gpt2: PreTrainedTokenizerFast) -> None:
        batch = gpt2(self.TEXT, return_tensors="pt")
        assert batch.encodings[0].tokens[3:8] == ["ĠçĮ«", "ð", "Ł", "Ĳ", "Ī"]
        (tokens,) = as_tokens(batch)
        assert tokens.labels == self.LABELS
        assert tokens.ids == tuple(batch["input_ids"][0].tolist())
        assert tokens.offsets[:6] == ((0, 3), (3, 7), (7, 8), (8, 10), (10, 11), (10, 11))
        assert tokens.special == tuple(label == "<mask>" for label in self.LABELS)
        assert tokens.word_ids[:6] == (0, 1, 1, 2, 3, 3)
        assert tokens.word_ids[11] is None
        assert tokens.text == self.TEXT

    def test_names_are_enough(self, gpt2: PreTrainedTokenizerFast) -> None:
        (tokens,) = as_tokens(names(gpt2, gpt2([self.TEXT])))
        assert tokens.labels == self.LABELS
        assert tokens.text == self.TEXT
        assert set(tokens.ids) == {-1}

    @example("猫\x00")
    @example(" é\n\n  é ")
    @given(text=TEXTS.filter(beyond_ascii))
    def test_any_text_comes_back(self, gpt2: PreTrainedTokenizerFast, text: str) -> None:
        batch = gpt2([text, "the cat"], padding=True)
        (tokens, _), (named, _) = as_tokens(batch), as_tokens(names(gpt2, batch))
        assert tokens.text == named.text == text
        expected = Tokenizer(gpt2.backend_tokenizer).encode(text)
        size = len(expected.ids)
        for field in ("ids", "labels", "offsets", "special", "unknown", "word_ids"):
            assert getattr(tokens, field)[:size] == getattr(expected, field)
        assert as_tokens(gpt2(text), text) == [expected]

    @given(text=st.text(st.characters(exclude_categories=["C", "Z", "M"], exclude_characters="#("), min_size=1))
    def test_joined_labels_are_the_text(self, gpt2: PreTrainedTokenizerFast, text: str) -> None:
        (tokens,) = as_tokens(gpt2("猫" + text))
        joined = ""
        for label in tokens.labels:
            whole, _, part = label.partition("(")
            joined += whole if part == "" or part.startswith("1/") else ""
        assert joined == "猫" + text

    @example("the é")
    @given(text=TEXTS.filter(beyond_ascii).map(str.lstrip))
    def test_spaces_added_and_left_out_of_the_offsets(self, roberta: PreTrainedTokenizerFast, text: str) -> None:
        (tokens,) = as_tokens(roberta(text))
        assert tokens.text == text
        assert tokens.labels == Tokenizer(roberta.backend_tokenizer).encode(text).labels

    def test_a_pair_without_a_sign_between(self, gpt2: PreTrainedTokenizerFast) -> None:
        batch = gpt2("the", "é cat")
        for tokens in (*as_tokens(batch), *as_tokens(batch, ("the", "é cat"))):
            assert tokens.text == "the\né cat"
            assert tokens.labels == ("the", "é(1/2)", "é(2/2)", "␣cat")
            assert tokens.offsets == ((0, 3), (4, 5), (4, 5), (5, 9))

    def test_the_space_before_a_mask(self, roberta: PreTrainedTokenizerFast) -> None:
        since("transformers", "5.0")  # before, PreTrainedTokenizerFast turned off the space before the first word
        roberta = PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(roberta.backend_tokenizer.to_str())
        )
        roberta.add_special_tokens({"mask_token": tokenizers.AddedToken("<mask>", lstrip=True, special=True)})
        batch = roberta(["the <mask>é"])
        assert names(roberta, batch)[0][:2] == ["Ġthe", "<mask>"]
        for tokens in (*as_tokens(batch), *as_tokens(batch, "the <mask>é"), *as_tokens(names(roberta, batch))):
            assert tokens.labels == ("␣the", "<mask>", "␣", "é(1/2)", "é(2/2)")
            assert tokens.special == (False, True, False, False, False)
            assert tokens.text.lstrip() in ("the <mask>é", "the <mask> é")  # the model did read a space

    def test_the_space_that_a_mask_takes_along(self) -> None:
        tokenizer = byte_level()
        tokenizer.add_special_tokens({"mask_token": tokenizers.AddedToken("<mask>", lstrip=True, special=True)})
        batch = tokenizer("the <mask>é")
        assert batch.encodings[0].tokens[1] == " <mask>"
        (tokens,) = as_tokens(batch)
        assert tokens.labels == ("the", "<mask>", "é(1/2)", "é(2/2)")
        assert tokens.text == "the <mask>é"

    def test_padding_with_any_name(self) -> None:
        tokenizer = byte_level()
        tokenizer.pad_token = "!"
        assert as_tokens(tokenizer(["the!", "the cat é!"], padding=True))[0].special == (False, False, *[True] * 4)

    def test_a_character_cut_in_half(self, gpt2: PreTrainedTokenizerFast) -> None:
        (tokens,) = as_tokens(gpt2("the 🐈", truncation=True, max_length=4))
        assert tokens.labels == ("the", "␣", "<0xF0>", "<0x9F>")
        assert tokens.text == "the \ufffd\ufffd"
        assert tokens.text.encode()  # can be written to a file
        (tokens,) = as_tokens(gpt2("the 🐈", truncation=True, max_length=4), "the 🐈")
        assert tokens.labels == ("the", "␣", "🐈(1/2)", "🐈(2/2)")

    def test_a_token_that_was_added_to_the_vocabulary(self) -> None:
        assert as_tokens(["Ġthe", "写真", "Ã©"])[0].labels == ("␣the", "写真", "é")

    def test_clip_marks_where_words_end(self, clip: PreTrainedTokenizerFast) -> None:
        batch = clip(["the cat é. 猫"])
        assert names(clip, batch)[0][-4:-1] == ["Ã©</w>", ".</w>", "çĮ«</w>"]
        expected = ("<|startoftext|>", "the</w>", "cat</w>", "é</w>", ".</w>", "猫</w>", "<|endoftext|>")
        assert [tokens.labels for tokens in as_tokens(batch)] == [expected]
        assert [tokens.labels for tokens in as_tokens(names(clip, batch))] == [expected]
        assert as_tokens(batch)[0].text == "the cat é. 猫"
        assert as_tokens(names(clip, batch))[0].text == "the cat é. 猫"


class TestMarksOfTheVocabulary:
    """Two tokens of one vocabulary never look alike, and no mark is that of another vocabulary."""

    @pytest.mark.parametrize(
        ("given", "labels"),
        [
            (["Mary", "Ġgave", "Mary", "ĠMary"], ("Mary", "␣gave", "Mary", "␣Mary")),
            (["Ġcan", "als", "to", "ols"], ("␣can", "als", "to", "ols")),
            (["if", "Ġx", "):", "ĊĠĠĠ", "Ġreturn", "Ċĉ", ";Ċ"], ("if", "␣x", "):", "⏎␣␣␣", "␣return", "⏎⇥", ";⏎")),
            (["##", "ĠA", "Ċ", "##b", "####"], ("##", "␣A", "⏎", "##b", "####")),
            (["▁a", "▁b", "##c", "ls", "▁▁▁", "<0x0A>"], ("␣a", "␣b", "##c", "ls", "␣␣␣", "⏎")),
            (["of", " Mary", "Mary", "\n   ", " the end"], ("of", "␣Mary", "Mary", "⏎␣␣␣", "␣the end")),
            (["play", "##ing", "ing", "##"], ("play", "##ing", "ing", "##")),
            (["un", "do</w>", "do"], ("un", "do</w>", "do")),
        ],
        ids=["a leading space", "pieces", "code", "headings", "sentencepiece", "decoded", "WordPiece", "CLIP"],
    )
    def test_stay(self, given: list[str], labels: tuple[str, ...]) -> None:
        assert as_tokens(given)[0].labels == labels

    def test_are_those_of_the_name_where_the_offsets_leave_spaces_out(self, roberta: PreTrainedTokenizerFast) -> None:
        for tokens in (*as_tokens(roberta("the cat"), "the cat"), *as_tokens(roberta("the cat"))):
            assert tokens.labels == ("␣the", "␣cat")

    def test_a_heading_that_the_tokenizer_calls_one_word_stays(self) -> None:
        backend = tokenizers.Tokenizer(
            tokenizers.models.BPE({"a": 0, "#": 1, "b": 2, "##": 3, "##b": 4}, [("#", "#"), ("##", "b")])
        )
        (tokens,) = as_tokens(backend.encode("a##b"), "a##b")
        assert tokens.labels == Tokenizer(backend).encode("a##b").labels == ("a", "##b")


class TestSentencepiece:
    def test_by_hand(self, t5: PreTrainedTokenizerFast) -> None:
        batch = t5(["the cats 猫"])
        assert names(t5, batch) == [["<s>", "▁", "t", "h", "e", "▁cat", "s", "▁", "猫", "</s>"]]
        for tokens in (*as_tokens(batch), *as_tokens(batch, "the cats 猫"), *as_tokens(names(t5, batch))):
            assert tokens.labels == ("<s>", "␣", "t", "h", "e", "␣cat", "s", "␣", "猫", "</s>")
            assert tokens.text == "the cats 猫"
            assert tokens.special == (True, *[False] * 8, True)
            assert tokens.word_ids == (None, 0, 0, 0, 0, 1, 1, 2, 2, None)
            assert tokens.words().labels == ("<s>", "the", "cats", "猫", "</s>")

    def test_no_space_before_what_follows_a_sign(self, t5: PreTrainedTokenizerFast) -> None:
        batch = t5("the<mask>the <mask> cat")
        assert batch.tokens()[5:8] == ["<mask>", "▁", "t"]
        assert as_tokens(batch)[0].text == "the<mask>the <mask> cat"

    def test_bytes_for_characters_without_a_token(self, llama2: PreTrainedTokenizerFast) -> None:
        batch = llama2(["the 猫 the", "猫"])
        assert names(llama2, batch)[0] == ["▁the", "▁", "<0xE7>", "<0x8C>", "<0xAB>", "▁the"]
        for first, second in (
            as_tokens(batch),
            as_tokens(batch, ["the 猫 the", "猫"]),
            as_tokens(names(llama2, batch)),
        ):
            assert first.labels == ("␣the", "␣", "猫(1/3)", "猫(2/3)", "猫(3/3)", "␣the")
            assert second.labels == ("␣", "猫(1/3)", "猫(2/3)", "猫(3/3)")

    @given(text=st.text("the s猫é🐈\n", max_size=20).filter(lambda text: not text.startswith(" ")))
    def test_any_text_comes_back(self, llama2: PreTrainedTokenizerFast, text: str) -> None:
        (tokens,) = as_tokens(llama2(text))
        assert tokens.text == text
        assert tokens.labels == Tokenizer(llama2.backend_tokenizer).encode(text).labels

    def test_only_the_text_tells_what_was_normalised_and_what_is_unknown(self, t5: PreTrainedTokenizerFast) -> None:
        batch = t5("ｔ ☂")
        assert as_tokens(batch)[0].labels[1:-1] == ("␣", "t", "␣", "☂")
        assert as_tokens(batch, "ｔ ☂")[0].labels[1:-1] == ("␣", "ｔ", "␣", "☂")
        (tokens,) = as_tokens([t5.convert_ids_to_tokens(batch["input_ids"])])
        assert tokens.labels[1:-1] == ("␣", "t", "␣", "<unk>")
        assert tokens.unknown == (False, False, False, False, True, False)


class TestWordPiece:
    TEXT = "Unrelatably Naïve [MASK] 猫"

    def test_of_names(self, bert: PreTrainedTokenizerFast) -> None:
        batch = bert([self.TEXT, "the"], padding=True, return_tensors="pt")
        long, short = as_tokens(batch)
        assert long.labels == ("[CLS]", "un", "##rel", "##ata", "##bly", "naive", "[MASK]", "[UNK]", "[SEP]")
        assert long.text == "unrelatably naive [MASK] [UNK]"
        assert [long.text[start:end] for start, end in long.offsets] == [
            "", "un", "rel", "ata", "bly", "naive", "[MASK]", "[UNK]", "",
        ]  # fmt: skip
        assert long.special == (True, *[False] * 5, True, False, True)
        assert long.unknown == (*[False] * 7, True, False)
        assert long.word_ids == (None, 0, 0, 0, 0, 1, None, 3, None)
        assert short.labels == ("[CLS]", "the", "[SEP]", *["[PAD]"] * 6)
        assert short.special == (True, False, *[True] * 7)
        assert [tokens.labels for tokens in as_tokens(names(bert, batch))] == [long.labels, short.labels]

    def test_padding_may_stand_before_the_text(self, bert: PreTrainedTokenizerFast) -> None:
        tokens = as_tokens(bert(["the", self.TEXT], padding=True, padding_side="left"))[0]
        assert tokens.labels == (*["[PAD]"] * 6, "[CLS]", "the", "[SEP]")
        assert tokens.text == "the"

    def test_with_the_text(self, bert: PreTrainedTokenizerFast) -> None:
        expected = Tokenizer.from_pretrained(default_model()).encode(self.TEXT)
        assert expected.labels[1:-1] == ("Un", "##rel", "##ata", "##bly", "Naïve", "[MASK]", "猫")
        batch = bert([self.TEXT, "the"], padding=False)
        assert as_tokens(batch, [self.TEXT, "the"])[0].labels == expected.labels
        assert as_tokens(batch, [self.TEXT, "the"])[0].word_ids == expected.word_ids
        assert expected.word_ids == (None, 0, 0, 0, 0, 1, None, 3, None)
        assert as_tokens(batch.encodings, [self.TEXT, "the"])[0].offsets == expected.offsets
        assert as_tokens(batch.encodings[0], self.TEXT)[0].special == expected.special

    def test_pairs(self, bert: PreTrainedTokenizerFast) -> None:
        batch = bert("The cat.", "A dog")
        for text in (None, ("The cat.", "A dog"), [("The cat.", "A dog")]):
            (tokens,) = as_tokens(batch, text)
            assert tokens.labels[0] == "[CLS]"
            assert tuple(map(str.lower, tokens.labels[1:])) == ("the", "cat", ".", "[sep]", "a", "dog", "[sep]")
            assert tokens.special == (True, False, False, False, True, False, False, True)
            assert tokens.word_ids == (None, 0, 1, 2, None, 3, 4, None)
            assert tokens.text.lower() == "the cat.\na dog"
            assert tokens.text[slice(*tokens.offsets[6])].lower() == "dog"

    def test_words_that_were_split_before(self, bert: PreTrainedTokenizerFast) -> None:
        (tokens,) = as_tokens(bert(["unrelatably", "so"], is_split_into_words=True))
        assert tokens.labels == ("[CLS]", "un", "##rel", "##ata", "##bly", "so", "[SEP]")
        assert tokens.text == "unrelatably so"

    def test_a_long_text_in_several_rows(self, bert: PreTrainedTokenizerFast) -> None:
        texts = ["One two three", "Unrelatably"]
        batch = bert(texts, truncation=True, max_length=4, return_overflowing_tokens=True)
        assert [tokens.labels[1:-1] for tokens in as_tokens(batch, texts)] == [
            ("One", "two"), ("three",), ("Un", "##rel"), ("##ata", "##bly"),
        ]  # fmt: skip
        assert as_tokens(batch)[3].labels[1:-1] == ("##ata", "##bly")  # all that its name says

    def test_strings_are_written_as_text(self) -> None:
        (tokens,) = as_tokens(["[CLS]", "dr", ".", "s", "##mith", "paid", "3", ".", "5", "(", "usd", ")", ".", "[SEP]"])
        assert tokens.text == "dr. smith paid 3.5 (usd)."
        assert tokens.labels[3:6] == ("s", "##mith", "paid")

    def test_a_number_needs_digits_on_both_sides(self) -> None:
        assert as_tokens(["It", "was", ".", "5", "##0", ",", "6"])[0].text == "It was. 50, 6"

    def test_headings_are_no_pieces(self) -> None:
        assert as_tokens(["##", "the", "###"])[0].text == "## the ###"


class TestNames:
    def test_are_shown_as_they_are(self) -> None:
        given = ["latent 0", "Größe", "Āne", "##part", "é", "a\tb", "x.y", "№ 5"]
        (tokens,) = as_tokens(given)
        assert tokens.labels == ("latent 0", "Größe", "Āne", "##part", "é", "a⇥b", "x.y", "№ 5")
        assert not any(tokens.special)
        assert tokens.words().labels[0] == "latent 0"

    @pytest.mark.parametrize(
        "given", [["¿¿¿¿", "Ã©"], ["Größe", "Ã©"], ["été", "Ġ"], ["##b", "▁a"]], ids=lambda given: given[0]
    )
    def test_are_not_taken_for_bytes_by_chance(self, given: list[str]) -> None:
        assert as_tokens(given)[0].labels == tuple(given)
        assert as_tokens([[name] for name in given])[1].labels == (given[1],)

    def test_numbered_bytes_are_characters_without_spaces_too(self) -> None:
        (tokens,) = as_tokens(["a", "<0xE7>", "<0x8C>", "<0xAB>"])
        assert tokens.labels == ("a", "猫(1/3)", "猫(2/3)", "猫(3/3)")

    def test_each_is_a_word(self) -> None:
        given = ["3", ".", "5", "$", "a", "(", "b", ")", "猫"]
        assert as_tokens(given)[0].words().labels == tuple(given)

    def test_batch(self) -> None:
        assert [tokens.labels for tokens in as_tokens([["a", "b"], ["c"], []])] == [("a", "b"), ("c",), ()]
        assert [tokens.labels for tokens in as_tokens(("a", "b"))] == [("a", "b")]

    @pytest.mark.parametrize(
        "name", ["[CLS]", "[PAD]", "<s>", "</s>", "<pad>", "<|im_start|>", "<｜begin▁of▁sentence｜>", "<extra_id_7>"]
    )
    def test_of_special_tokens(self, name: str) -> None:
        (tokens,) = as_tokens(["a", name, "b"])
        assert tokens.special == (False, True, False)
        assert tokens.labels[1] == name
        assert tokens.text == "a\nb"

    def test_of_no_special_tokens(self) -> None:
        assert not any(as_tokens(["</div>", "[0]", "<b>", "[UNK]"])[0].special)


class TestOthers:
    def test_tokens_and_patches(self) -> None:
        tokens = as_tokens(["a", "b"])[0]
        assert as_tokens(tokens) == [tokens]
        grid = Patches(1, 2)
        assert as_tokens([tokens, grid, ["c"]]) == [tokens, grid.tokens(), *as_tokens(["c"])]
        assert as_tokens(grid)[0].labels == ("[CLS]", "(0, 0)", "(0, 1)")
        assert as_tokens(grid)[0].patches == grid

    def test_every_tuple_has_one_entry_a_token(self, bert: PreTrainedTokenizerFast) -> None:
        for source in (bert("The cat"), ["a", "b"], Patches(2, 2)):
            (tokens,) = as_tokens(source)
            fields = (tokens.labels, tokens.offsets, tokens.special, tokens.unknown, tokens.word_ids)
            assert {len(field) for field in fields} == {len(tokens.ids)}


class TestBadInput:
    @pytest.mark.parametrize(
        ("value", "received"),
        [
            ("the cat", "str"),
            (torch.arange(3), "Tensor"),
            ([1, 2], "a list with int"),
            ([["a"], [1]], "a list with list"),
            (None, "NoneType"),
            ({"tokens": ["a"]}, "dict"),
        ],
    )
    def test_something_else(self, value: object, received: str) -> None:
        with pytest.raises(DtypeError, match=rf"\Atokens: expected .* Received: {received}\. For ids, pass [^\n]*\Z"):
            as_tokens(value)

    @pytest.mark.parametrize(
        "value", [BatchEncoding({"input_ids": [[1, 2]]}), {"input_ids": [[1, 2]]}], ids=["slow", "dict"]
    )
    def test_without_encodings(self, value: object) -> None:
        with pytest.raises(DtypeError, match=r"without encodings, .*convert_ids_to_tokens\(ids\) for ids in input_ids"):
            as_tokens(value)

    def test_nothing(self) -> None:
        with pytest.raises(ArgumentError, match="Received: an empty list"):
            as_tokens([])

    @pytest.mark.parametrize("value", [["a"], Patches(1, 1), Tokens((1,), ("a",), ((0, 1),), (False,), "a")], ids=type)
    def test_a_text_for_what_has_no_offsets(self, value: object) -> None:
        with pytest.raises(ArgumentError, match="text: expected tokens=the output of a fast tokenizer"):
            as_tokens(value, "a")

    def test_another_number_of_texts(self, bert: PreTrainedTokenizerFast) -> None:
        with pytest.raises(ArgumentError, match=r"text: expected one for each of the 2 examples\. Received: 1"):
            as_tokens(bert(["a", "b"]), "a")
        with pytest.raises(DtypeError, match="text: expected strings"):
            as_tokens(bert(["a", "b"]), [b"a", b"b"])  # type: ignore[list-item]

    @pytest.mark.parametrize("text", ["another story entirely", "the"])
    def test_another_text(self, bert: PreTrainedTokenizerFast, text: str) -> None:
        with pytest.raises(ArgumentError, match=r"text: expected the text that the tokenizer was called with\. .* 3"):
            as_tokens(bert("the cat sat"), text)

    def test_too_short_a_text(self, bert: PreTrainedTokenizerFast) -> None:
        with pytest.raises(ArgumentError, match="2 of 2 tokens are not at their offsets"):
            as_tokens(bert("我的我"), "我")

    def test_a_text_for_words_that_were_split_before(self, bert: PreTrainedTokenizerFast) -> None:
        with pytest.raises(ArgumentError, match="Leave it out if the tokenizer was called with pre-split words"):
            as_tokens(bert(["the", "cat", "sat"], is_split_into_words=True), "the cat sat")

    def test_one_text_for_a_pair(self, bert: PreTrainedTokenizerFast) -> None:
        with pytest.raises(ArgumentError, match=r"text: expected \(first, second\)"):
            as_tokens(bert("a", "b"), "a")
