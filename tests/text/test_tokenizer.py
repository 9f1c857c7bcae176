"""What a token is called. The tokens themselves must be those of the checkpoint's official tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import ArgumentError, CheckpointError, DtypeError
from headwise.models.checkpoint import default_model
from headwise.text import Tokenizer


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return Tokenizer.from_pretrained(default_model())


def train_byte_level() -> tokenizers.Tokenizer:
    """A tiny tokenizer of GPT-2's kind: it knows a few English words, and of everything else only the bytes."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = tokenizers.processors.ByteLevel()
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(["the cat the cat the cat"], trainer)
    return backend


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return Tokenizer(train_byte_level())


class TestLabels:
    """Of WordPiece, which has a token for a character or has none."""

    def test_a_word_of_any_length_has_a_short_label(self, minilm: Tokenizer) -> None:
        assert minilm.encode("b" * 1000).labels[1] == "b" * 64 + "…"
        assert minilm.encode("e" + "\u0301" * 1000 + " x").labels[-2] == "x"

    def test_words_and_their_pieces(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode("The animal was unrelatably tired.")
        assert tokens.labels == (
            "[CLS]", "The", "animal", "was", "un", "##rel", "##ata", "##bly", "tired", ".", "[SEP]",
        )  # fmt: skip
        assert tokens.special == (True, *[False] * 9, True)
        assert not any(tokens.unknown)
        assert tokens.offsets[4:8] == ((15, 17), (17, 20), (20, 23), (23, 26))
        assert (tokens.cut, tokens.text) == (0, "The animal was unrelatably tired.")

    def test_empty_text(self, minilm: Tokenizer) -> None:
        for text in ("", " \n\t "):
            tokens = minilm.encode(text)
            assert (tokens.ids, tokens.labels, tokens.special) == ((101, 102), ("[CLS]", "[SEP]"), (True, True))

    def test_chinese_shows_every_character_also_those_unknown(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode("我的猫。")
        assert tokens.labels == ("[CLS]", "我", "的", "猫", "。", "[SEP]")
        assert tokens.unknown == (False, False, False, True, False, False)
        assert tokens.ids[3] == 100

    def test_accents_and_case_are_those_of_the_text(self, minilm: Tokenizer) -> None:
        assert minilm.encode("Naïve CAFÉ cafe\u0301 ﬁn").labels[1:-1] == ("Naïve", "CAFÉ", "cafe\u0301", "ﬁ", "##n")

    def test_a_text_that_looks_like_bytes(self, minilm: Tokenizer) -> None:
        assert minilm.encode("×« unrelatably").labels[1:5] == ("×", "«", "un", "##rel")

    def test_one_character_in_several_tokens(self, minilm: Tokenizer) -> None:
        labels = minilm.encode("한국").labels  # the uncased BERT takes Korean syllables apart
        assert labels[1:-1] == ("한(1/3)", "한(2/3)", "한(3/3)", "##국(1/3)", "국(2/3)", "국(3/3)")

    def test_special_tokens_written_in_the_text(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode("the [MASK] sat [UNK]")
        assert tokens.labels == ("[CLS]", "the", "[MASK]", "sat", "[UNK]", "[SEP]")
        assert tokens.special == (True, False, True, False, False, True)
        assert tokens.unknown == (False, False, False, False, True, False)


class TestLabelsOfBytes:
    """A byte-level token may be a third of a character, and has spaces and newlines of its own."""

    @pytest.mark.parametrize(
        "character", ["👨‍👩‍👧", "👍🏽", "🇫🇷", "❤️", "e\u0301", "🏴\U000e0067\U000e0062\U000e007f", "नि"]
    )
    def test_character_of_several_code_points_is_never_cut(self, byte_level: Tokenizer, character: str) -> None:
        labels = byte_level.encode(character).labels
        n = len(character.encode())
        assert labels == tuple(f"{character}({i}/{n})" for i in range(1, n + 1))

    def test_character_shared_with_a_token_that_holds_more(self) -> None:
        backend = train_byte_level()
        backend.train_from_iterator(
            ["é è é è é è"],
            tokenizers.trainers.BpeTrainer(
                vocab_size=258, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
            ),
        )
        # The space and the first byte of é and è have become one token.
        assert Tokenizer(backend).encode(" é").labels == ("␣é(1/2)", "é(2/2)")

    def test_white_space_is_seen(self, byte_level: Tokenizer) -> None:
        assert byte_level.encode("the\n\tcat").labels == ("the", "⏎", "⇥", "cat")
        assert byte_level.encode("cat cat").labels == ("cat", "␣cat")
        assert byte_level.encode("s  s").labels == ("s", "␣", "␣", "s")
        assert byte_level.encode("\n\u0301").labels[0] == "⏎"  # no accent can sit on it

    def test_a_space_in_one_long_word(self) -> None:
        backend = train_byte_level()
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
        assert Tokenizer(backend).encode("the wo").labels == ("the", "␣", "w", "o")

    def test_direction_marks_are_shown_not_obeyed(self, byte_level: Tokenizer) -> None:
        assert byte_level.encode("\u202e").labels == ("<U+202E>(1/3)", "<U+202E>(2/3)", "<U+202E>(3/3)")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_has_readable_labels(minilm: Tokenizer, byte_level: Tokenizer, text: str) -> None:
    for tokenizer in (minilm, byte_level):
        tokens = tokenizer.encode(text)
        sizes = {len(each) for each in (tokens.ids, tokens.labels, tokens.offsets, tokens.special, tokens.unknown)}
        assert sizes == {len(tokens.ids)}
        assert all(tokens.labels)
        assert "\ufffd" in text or not any("\ufffd" in label for label in tokens.labels)
        assert not any(character in label for label in tokens.labels for character in "\n\t\r")


class TestLength:
    TEXT = "one two three four five"

    def test_stored_truncation_and_padding_are_not_used(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode("word " * 300)
        assert len(tokens.ids) == 302  # MiniLM's tokenizer.json would cut at 128
        assert len(minilm.encode("word").ids) == 3  # and pad to 128
        assert tokens.cut == 0

    def test_keeps_the_beginning_and_counts_the_rest(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode(self.TEXT, max_length=5)
        assert tokens.labels == ("[CLS]", "one", "two", "three", "[SEP]")
        assert len(tokens.ids) == len(tokens.offsets) == len(tokens.special) == len(tokens.unknown) == 5
        assert tokens.cut == 2
        assert tokens.text == self.TEXT

    def test_only_the_special_tokens_fit(self, minilm: Tokenizer) -> None:
        tokens = minilm.encode(self.TEXT, max_length=2)
        assert (tokens.labels, tokens.cut) == (("[CLS]", "[SEP]"), 5)

    @pytest.mark.parametrize("max_length", [1, 0, -1])
    def test_not_even_they_fit(self, minilm: Tokenizer, max_length: int) -> None:
        with pytest.raises(ArgumentError, match=f"max_length: expected at least 2 .*Received: max_length={max_length}"):
            minilm.encode(self.TEXT, max_length=max_length)

    def test_part_numbers_count_what_was_cut(self, byte_level: Tokenizer) -> None:
        tokens = byte_level.encode("🐈", max_length=2)
        assert (tokens.labels, tokens.cut) == (("🐈(1/4)", "🐈(2/4)"), 2)


class TestOfficial:
    """The same ids as transformers, on Python's manual."""

    TEXTS = tuple(topics[name] for name in sorted(topics)[::4])

    @pytest.fixture(scope="class")
    @classmethod
    def official(cls) -> list[list[int]]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(default_model())
        return tokenizer(list(cls.TEXTS), truncation=False, padding=False, verbose=False)["input_ids"]

    def test_tokenizer_json(self, minilm: Tokenizer, official: list[list[int]]) -> None:
        assert [list(minilm.encode(text).ids) for text in self.TEXTS] == official

    def test_vocab_txt(self, tmp_path: Path, official: list[list[int]]) -> None:
        for name in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(default_model() / name, tmp_path)
        tokenizer = Tokenizer.from_pretrained(tmp_path)
        assert [list(tokenizer.encode(text).ids) for text in self.TEXTS] == official


class TestVocabTxt:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cat", "##s", "猫", "猫猫", "cafe", "café"]
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        return tmp_path

    def settings(self, folder: Path, **values: bool) -> Tokenizer:
        (folder / "tokenizer_config.json").write_text(json.dumps(values))
        return Tokenizer.from_pretrained(folder)

    def test_pieces_and_special_tokens(self, folder: Path) -> None:
        tokens = Tokenizer.from_pretrained(folder).encode("The cats [MASK] sit")
        assert tokens.ids == (2, 5, 7, 8, 4, 1, 3)
        assert tokens.labels == ("[CLS]", "The", "cat", "##s", "[MASK]", "sit", "[SEP]")
        assert tokens.special == (True, False, False, False, True, False, True)
        assert tokens.unknown == (False, False, False, False, False, True, False)

    def test_case_is_lowered_unless_said_otherwise(self, folder: Path) -> None:
        assert Tokenizer.from_pretrained(folder).encode("The").ids == (2, 5, 3)
        assert self.settings(folder, do_lower_case=False).encode("The").ids == (2, 6, 3)

    def test_accents_go_with_the_case_unless_said_otherwise(self, folder: Path) -> None:
        assert Tokenizer.from_pretrained(folder).encode("café").ids == (2, 11, 3)
        assert self.settings(folder, strip_accents=False).encode("café").ids == (2, 12, 3)
        assert self.settings(folder, do_lower_case=False).encode("café").ids == (2, 12, 3)

    def test_chinese_is_split_unless_said_otherwise(self, folder: Path) -> None:
        assert Tokenizer.from_pretrained(folder).encode("猫猫").ids == (2, 9, 9, 3)
        assert self.settings(folder, tokenize_chinese_chars=False).encode("猫猫").ids == (2, 10, 3)

    def test_not_a_bert_vocabulary(self, folder: Path) -> None:
        (folder / "vocab.txt").write_text("the\ncat\n[UNK]\n")
        with pytest.raises(CheckpointError, match=r"vocab\.txt is not a BERT vocabulary: it has no \[CLS\], \[SEP\]"):
            Tokenizer.from_pretrained(folder)

    def test_not_utf8(self, folder: Path) -> None:
        (folder / "vocab.txt").write_bytes("[UNK]\nchat\u00e9\n".encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"cannot read .*vocab\.txt.*Expected one token per line, in UTF-8"):
            Tokenizer.from_pretrained(folder)

    @pytest.mark.parametrize("content", ["{", "[1]"])
    def test_damaged_settings(self, folder: Path, content: str) -> None:
        (folder / "tokenizer_config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer_config\.json"):
            Tokenizer.from_pretrained(folder)


class TestBadInput:
    def test_folder_without_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no tokenizer in .*: expected tokenizer\.json or vocab\.txt"):
            Tokenizer.from_pretrained(tmp_path)

    @pytest.mark.parametrize("content", [b"", b'{"version": "1.0"', b"\xff\xfe", b"[]"])
    def test_damaged_tokenizer_json(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"\Acannot read [^\n]*tokenizer\.json[^\n]*\Z"):
            Tokenizer.from_pretrained(tmp_path)

    def test_a_sign_that_is_used_but_not_described(self, tmp_path: Path) -> None:
        """The Rust library panics, but only when it reads a text."""
        content = json.loads((default_model() / "tokenizer.json").read_text(encoding="utf-8"))
        del content["post_processor"]["special_tokens"]["[CLS]"]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"\Acannot read [^\n]*tokenizer\.json[^\n]*\Z"):
            Tokenizer.from_pretrained(tmp_path)

    def test_text_of_another_kind(self, minilm: Tokenizer) -> None:
        with pytest.raises(DtypeError, match=r"text: expected a string\. Received: bytes"):
            minilm.encode(b"text")  # type: ignore[arg-type]

    def test_half_a_surrogate_pair(self, minilm: Tokenizer) -> None:
        with pytest.raises(ArgumentError, match=r"text: expected valid Unicode.* at position 2"):
            minilm.encode("ab\ud83d")


def test_importing_the_module_imports_nothing_heavy() -> None:
    code = "import headwise.text, sys; print(sorted({'torch', 'tokenizers', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
