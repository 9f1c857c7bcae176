"""Words and sentences as a reader expects them, and never a token lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from headwise.errors import ArgumentError
from headwise.models.checkpoint import default_model
from headwise.text import Groups, Tokenizer, Tokens, as_tokens


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return Tokenizer.from_pretrained(default_model())


def read(tokenizer: PreTrainedTokenizerFast, text: str) -> Tokens:
    (tokens,) = as_tokens(tokenizer(text, add_special_tokens=False), text)
    return tokens


def characters(text: str, word_ids: tuple[int, ...] = ()) -> Tokens:
    """Each character a token; without `word_ids`, of a tokenizer that tells nothing of words."""
    no = (False,) * len(text)
    return Tokens((0,) * len(text), tuple(text), tuple((i, i + 1) for i in range(len(text))), no, text, 0, no, word_ids)


class TestGroups:
    def test_there_and_back(self) -> None:
        groups = Groups(("a", "b"), ((0, 2), (1,)))
        assert groups.tokens_of(0) == (0, 2)
        assert [groups.group_of(token) for token in range(3)] == [0, 1, 0]
        assert groups.index == (0, 1, 0)
        assert len(groups) == 2

    @pytest.mark.parametrize("spans", [((0,), (2,)), ((0, 1), (1, 2)), ((1,), (2,)), ((0,), (-1,))])
    def test_each_token_in_one(self, spans: tuple[tuple[int, ...], ...]) -> None:
        with pytest.raises(ArgumentError, match="in exactly one group"):
            Groups(("a", "b"), spans)

    def test_bad_input(self) -> None:
        with pytest.raises(ArgumentError, match=r"expected 2 labels, one per group\. Received: 1 labels"):
            Groups(("a",), ((0,), (1,)))
        groups = Groups(("a", "b"), ((0, 2), (1,)), "words")
        for wrong in (-1, 2):
            with pytest.raises(ArgumentError, match=rf"expected one of the words 0 … 1\. Received: group={wrong}"):
                groups.tokens_of(wrong)
        for wrong in (-1, 3):
            with pytest.raises(ArgumentError, match=rf"one of the tokens 0 … 2\. Received: token={wrong}"):
                groups.group_of(wrong)


class TestWords:
    def test_pieces_make_words_again(self, minilm: Tokenizer) -> None:
        words = minilm.encode("The animal was unrelatably tired.").words()
        assert words.labels == ("[CLS]", "The", "animal", "was", "unrelatably", "tired", ".", "[SEP]")
        assert words.spans[4] == (4, 5, 6, 7)
        assert words.level == "words"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("bert", ["The", "cats", "don", "'", "t", "pay", "3", ".", "50", ",", "Dr", "."]),
            ("gpt2", ["The", "cats", "don", "'t", "pay", "3", ".", "50", ",", "Dr", "."]),
            ("t5", ["The", "cats", "don't", "pay", "3.50", ",", "Dr", "."]),
            ("llama2", ["The", "cats", "don't", "pay", "3.50", ",", "Dr", "."]),
        ],
    )
    def test_each_tokenizer_cuts_its_own_way(self, name: str, words: list[str], request: pytest.FixtureRequest) -> None:
        tokens = read(request.getfixturevalue(name), "The cats don't pay 3.50, Dr.")
        assert list(tokens.words().labels) == words

    @pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "llama2"])
    def test_chinese_characters_are_words(self, name: str, request: pytest.FixtureRequest) -> None:
        tokens = read(request.getfixturevalue(name), "cat 我的猫。the")
        assert tokens.words().labels == ("cat", "我", "的", "猫", "。", "the")

    def test_a_token_of_several_characters_is_one_word(self) -> None:
        assert as_tokens(["▁", "我的", "猫", "が"])[0].words().labels == ("我的", "猫", "が")

    def test_digits_and_letters_are_not_parted(self) -> None:
        assert characters("ab 1990 नि é").words().labels == ("ab", "1990", "नि", "é")
        assert characters("ab1", (0, 1, 2)).words().labels == ("ab", "1")
        assert characters("ab1", (0, 0, 0)).words().labels == ("ab1",)
        assert characters("ab1").words().labels == ("ab", "1")
        assert characters("e\u0301't", (0, 0, 0, 0)).words().labels == ("e\u0301't",)

    def test_signs_and_symbols(self, t5: PreTrainedTokenizerFast) -> None:
        assert read(t5, "the ... (cat)!?").words().labels == ("the", "...", "(", "cat", ")!?")
        assert characters("d🐈.t。“n").words().labels == ("d", "🐈", ".", "t", "。", "“", "n")

    def test_white_space(self, gpt2: PreTrainedTokenizerFast, roberta: PreTrainedTokenizerFast) -> None:
        for tokenizer in (gpt2, roberta):
            words = read(tokenizer, "the\n\tcat  é").words()
            assert words.labels == ("the", "⏎", "⇥", "cat", "␣", "é")
        assert characters("a \t\n b\tc").words().labels == ("a", "␣", "⇥", "⏎", "b", "⇥", "c")

    def test_parts_of_a_character_stay_together(self, gpt2: PreTrainedTokenizerFast) -> None:
        tokens = read(gpt2, "👨‍👩‍👧e\u0301")
        assert tokens.words().labels == ("👨‍👩‍👧", "e\u0301")
        assert characters("👍🏽", (0, 1)).words().labels == ("👍🏽",)

    def test_special_tokens_are_their_own(self, minilm: Tokenizer) -> None:
        words = minilm.encode("un[MASK]so[MASK][MASK]").words()
        assert words.labels == ("[CLS]", "un", "[MASK]", "so", "[MASK]", "[MASK]", "[SEP]")

    def test_special_tokens_side_by_side(self) -> None:
        ends, no = (0, 1, 7, 13, 14), (False, True, True, False)
        tokens = Tokens((0,) * 4, ("=", "<mask>", "<mask>", "="), tuple(pairwise(ends)), no, "=<mask><mask>=")
        assert tokens.words().spans == ((0,), (1,), (2,), (3,))
        assert tokens.sentences().spans == ((0, 3), (1,), (2,))

    def test_without_any_token(self) -> None:
        assert len(as_tokens([[]])[0].words()) == len(as_tokens([[]])[0].sentences()) == 0


class TestSentences:
    @pytest.mark.parametrize(
        "sentences",
        [
            ["Dr. Smith paid 3.5 dollars."],
            ["One.", "Two!", "Three?", "Four"],
            ["Wait... what?!", "No."],
            ['He said "Stop!" and left.', "She stayed."],
            ["“Is it?”", "(It is.)", "Good."],
            ["J. R. Smith lives in the U.S. with e.g. Mrs. Jones.", "See No. 5 and Fig. 2.", "No.", "He does not."],
            ["In 1990.", "He was born in 1990.", "Then."],
            ["1. Open it.", "2. Close it."],
            ["Visit example.com now.", "It is v1.2.3!"],
            ["你好！", "我的猫。", "“是吗？”", "他说"],
            ["これは猫です。", "はい"],
            ["क्या।", "हाँ"],
            ["It ends here"],
        ],
        ids=lambda sentences: sentences[0],
    )
    def test_of_text(self, sentences: list[str]) -> None:
        between = "" if sentences[0][-1] in "！。।" else " "
        groups = characters(between.join(sentences)).sentences()
        assert list(groups.labels) == sentences
        assert groups.level == "sentences"

    def test_newlines_end_them(self, gpt2: PreTrainedTokenizerFast) -> None:
        tokens = read(gpt2, "The cat\n\nthe dog.\nThe Dr.\nSmith")
        assert tokens.sentences().labels == ("The cat", "the dog.", "The Dr.", "Smith")

    def test_small_letters_say_nothing_where_there_are_no_capitals(self) -> None:
        assert characters("one cat. two cats. dr. who").sentences().labels == ("one cat.", "two cats.", "dr. who")

    def test_a_mask_does_not_end_one_and_a_separator_does(self, minilm: Tokenizer) -> None:
        sentences = minilm.encode("The [MASK] sat [SEP] here. Now").sentences()
        assert sentences.labels == ("[CLS]", "The [MASK] sat", "[MASK]", "[SEP]", "here.", "Now", "[SEP]")
        assert sentences.spans[1] == (1, 3)

    def test_a_pair(self, bert: PreTrainedTokenizerFast) -> None:
        pair = ("The cat. It sat", "on the mat")
        for tokens in (*as_tokens(bert(*pair), pair), *as_tokens(bert(*pair)), *as_tokens(bert(*pair).tokens())):
            assert tuple(map(str.lower, tokens.sentences().labels)) == (
                "[cls]", "the cat.", "it sat", "[sep]", "on the mat", "[sep]",
            )  # fmt: skip

    def test_a_space_by_itself_goes_with_its_word(self, gpt2: PreTrainedTokenizerFast) -> None:
        tokens = read(gpt2, "The cat. É")
        assert tokens.labels[-3:] == ("␣", "É(1/2)", "É(2/2)")
        assert tokens.sentences().spans[-1] == tuple(range(len(tokens.ids)))[-3:]


@given(text=st.text(st.sampled_from("the cat 猫我é🐈👨🇫🇷\u0301\u200d\n\t .,'!。！\"”3नि한"), max_size=40))
def test_no_token_is_lost_and_no_word_cut(request: pytest.FixtureRequest, text: str) -> None:
    for name in ("gpt2", "roberta", "t5", "llama2", "bert"):
        tokenizer: PreTrainedTokenizerFast = request.getfixturevalue(name)
        for tokens in (*as_tokens(tokenizer(text)), *as_tokens(tokenizer(text), text)):
            words, sentences = tokens.words(), tokens.sentences()  # both check that each token is in one group
            assert len(words.index) == len(sentences.index) == len(tokens.ids)
            assert all(words.labels)
            assert all(sentences.labels)
            for i, span in enumerate(words.spans):
                assert span == tuple(range(span[0], span[-1] + 1))
                assert len({sentences.group_of(token) for token in span}) == 1
                assert words.tokens_of(words.group_of(span[0])) == span == words.tokens_of(i)
                assert len(span) == 1 or not any(tokens.special[token] for token in span)
