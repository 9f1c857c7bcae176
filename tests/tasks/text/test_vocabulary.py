"""A vocabulary of a task: every text comes back as it was, and the same texts give the same one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwise.errors import ArgumentError, CheckpointError, DtypeError
from headwise.tasks.text.vocabulary import Vocabulary
from headwise.text import Tokenizer

TEXTS = ["the cat sat on the mat", "the dog sat", "die Katze saß", "猫坐在垫子上", "猫坐下了"] * 3
VOCABULARY = Vocabulary.train(TEXTS, 300)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" two  spaces and\n\na line, \t")
@example("[EOS] is text, [PAD] and [MASK] too")
@example("CASE, Ünïcode, 猫和狗🐈‍⬛")
@example("")
def test_every_text_comes_back_as_it_was(text: str) -> None:
    (ids,) = VOCABULARY.encode([text])
    assert VOCABULARY.decode(ids) == text
    assert (ids[0], ids[-1]) == (VOCABULARY.begin, VOCABULARY.end)
    assert not {VOCABULARY.begin, VOCABULARY.end, VOCABULARY.pad} & set(ids[1:-1])
    read = VOCABULARY.read(text)
    assert VOCABULARY.tokens(read).ids == tuple(read.ids) == tuple(ids)


def test_what_is_frequent_is_one_token_wherever_it_stands() -> None:
    first, later = VOCABULARY.encode(["the", "sat the"])
    assert len(first) == 3
    assert first[1] == later[-2]
    assert VOCABULARY.tokens(VOCABULARY.read("the cat")).labels == ("[BOS]", "␣the", "␣cat", "[EOS]")


def test_a_longer_text_keeps_its_beginning_or_its_end() -> None:
    whole = VOCABULARY.encode(["the cat sat"])[0]
    assert VOCABULARY.encode(["the cat sat"], 4) == [[*whole[:3], whole[-1]]]
    assert VOCABULARY.encode(["the cat sat"], 4, keep="end") == [[whole[0], *whole[2:]]]
    tokens = VOCABULARY.tokens(VOCABULARY.read("the cat sat"), 4, keep="end")
    assert tokens.labels == ("[BOS]", "␣cat", "␣sat", "[EOS]")
    assert tokens.cut == 1
    with pytest.raises(ArgumentError, match="at least 2"):
        VOCABULARY.encode(["the cat sat"], 1)


def test_what_a_model_wrote_has_names() -> None:
    ids = VOCABULARY.encode(["the 猫"])[0]
    tokens = VOCABULARY.named(ids[:-1])
    assert tokens.ids == tuple(ids[:-1])
    assert tokens.labels[:2] == ("[BOS]", "␣the")
    assert "猫" in "".join(tokens.labels)
    assert VOCABULARY.named([VOCABULARY.begin]).labels == ("[BOS]",)


def test_its_file_is_read_by_other_readers_of_tokenizers_too(tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "tokenizer.json")
    again = Vocabulary.load(tmp_path / "tokenizer.json")
    assert again.encode([*TEXTS, "[EOS]"]) == VOCABULARY.encode([*TEXTS, "[EOS]"])
    assert (again.pad, again.begin, again.end, len(again)) == (0, 1, 2, len(VOCABULARY))
    tokens = Tokenizer.from_pretrained(tmp_path).encode("the cat")
    assert tokens == VOCABULARY.tokens(VOCABULARY.read("the cat"))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        Vocabulary.load(tmp_path / "tokenizer.json")


def test_another_process_learns_the_same(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headwise.tasks.text.vocabulary import Vocabulary; "
        "from tests.tasks.text.test_vocabulary import TEXTS; "
        "Vocabulary.train(TEXTS, 300).save(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "other.json")], check=True, cwd=Path.cwd())
    VOCABULARY.save(tmp_path / "this.json")
    assert (tmp_path / "other.json").read_bytes() == (tmp_path / "this.json").read_bytes()


def test_what_cannot_be_learned_or_read() -> None:
    with pytest.raises(ArgumentError, match=r"at least 259 tokens, 256 bytes and 3 signs. Received: 258"):
        Vocabulary.train(TEXTS, 258)
    with pytest.raises(ArgumentError, match="Unicode"):
        Vocabulary.train(["\ud800"], 300)
    with pytest.raises(DtypeError, match=r"text: expected a string. Received: int"):
        VOCABULARY.encode([3])  # type: ignore[list-item]
