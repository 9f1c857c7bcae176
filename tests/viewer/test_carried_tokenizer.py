"""A tokenizer that a page carries, run in node, against the same tokenizer in Python."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from headwise.errors import ArgumentError
from headwise.models.checkpoint import default_model
from headwise.tasks.text.wordpieces import train_wordpieces
from headwise.text import Tokenizer
from headwise.text.tokens import cut_at_tokens
from headwise.viewer.bundle import STATIC, assemble
from headwise.viewer.carried_tokenizer import carry_tokenizer

from .node import evaluate

SEED = random.randrange(2**31)  # other texts in each run; pytest prints it where a test fails
CODE = """
    const { Tokenizer } = await use("model/tokenizer.js");
    const tokenizer = new Tokenizer(given.tokenizer);
    return given.texts.map((text, i) => tokenizer.read(text, given.longest[i] ?? Infinity));
"""
BLOCKS = [
    *[(0x20, 0x7E)] * 4,
    *[(0xA0, 0x17F)] * 2,
    *((0x00, 0x1F), (0x7F, 0x9F), (0x180, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5F4)),
    *((0x600, 0x6FF), (0x8A0, 0x8FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1AB0, 0x1AFF)),
    *((0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20D0, 0x20F0), (0x2100, 0x218B), (0x2E00, 0x2E7F), (0x3000, 0x30FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F)),
    *((0xFE00, 0xFE6F), (0xFF00, 0xFFEF), (0xFFF0, 0xFFFF), (0x10000, 0x11FFF), (0x13430, 0x1345F)),
    *((0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E000, 0x1E94F), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF)),
    *((0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F), (0x30000, 0x323AF), (0xE0000, 0xE01EF)),
    (0xF0000, 0x10FFFF),
]
ODD = [
    *("", " ", "\n\t ", "\u00a0", "\x00", "\ufffd", "a" * 150, "un" * 70, "x" * 101, "日本語" * 40),
    *("don't 3.5 U.S. (a) ((b)) “c” 1,000.5", "[CLS] [MASK]a[UNK]b[PAD]", "×« unrelatably", "##ing # ##"),
    *("ΟΔΟΣ ΣΑΣ İstanbul ǅ ẞ", "e\u0301\u0323e\u0323\u0301", "\u302e\u0301a\U0001d165\u0301", "👨‍👩‍👧🏴󠁧󠁢󠁳󠁣󠁴󠁿🇩🇪🇫🇷🇺👍🏽"),
    *("שָׁלוֹם عَرَبِيّ", "नमस्ते", "ไทย", "각힣\u1112\u1161\u11ab", "\U00020000\U0002b820\U0002f81a"),
    *("a\u0301" * 70, "\u061d\u0898\u166d\u1734\u2e5d", " \u08d9\U00013431", "⹝⹕", "Ġ", "a_\u08d0\u08c8"),
]  # fmt: skip


def draw_text(draw: random.Random, names: Sequence[str]) -> str:
    """A text that is hard to read: words of a vocabulary, characters of all kinds, and what is in ODD."""
    parts = []
    for _ in range(draw.randrange(12)):
        kind, block = draw.random(), draw.choice(BLOCKS)
        if kind < 0.3:
            parts.append(draw.choice(names).removeprefix("##"))
        elif kind < 0.4:
            parts.append(draw.choice(ODD))
        else:
            parts += [chr(draw.randint(*block)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.8:
        parts = [part for part in parts if unicodedata.category(part[-1:] or " ") != "Cn"]
    return "".join(part + draw.choice(["", "", " "]) for part in parts)


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return Tokenizer.from_pretrained(default_model())


def trained(lowercase: bool) -> Tokenizer:
    """As `headwise train classify` makes one: pieces of its texts, and each of their characters."""
    draw = random.Random(0)
    texts = [draw_text(draw, ["unrelatable", "##Über", "of"]) for _ in range(500)]
    return train_wordpieces(texts, 300, lowercase=lowercase)


def names_of(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.backend.get_vocab())


def expected(tokenizer: Tokenizer, text: str, longest: int | None) -> dict[str, Any]:
    tokens = tokenizer.encode(text, longest)
    gaps, pieces = cut_at_tokens(tokens)
    words, sentences = tokens.words(), tokens.sentences() if text else tokens.words()
    axis = {
        **{"labels": tokens.labels, "gaps": gaps, "pieces": pieces, "special": tokens.special},
        **{"unknown": tokens.unknown, "words": {"index": words.index, "labels": words.labels}},
        **{"sentences": {"index": sentences.index, "labels": sentences.labels}},
        **{"cut": tokens.cut, "text": text != ""},
    }
    return {"ids": tokens.ids, "offsets": tokens.offsets, "axis": axis}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def is_stirred(tokenizer: Tokenizer, text: str) -> bool:
    """Whether Rust moves marks of which it keeps one: offsets, and rarely ids, are then others."""
    normal, nfd = tokenizer.backend.normalizer.normalize_str, normalizers.NFD().normalize_str
    points = [each for each in text if unicodedata.category(each) not in ("Cc", "Cf", "Co") or each.isspace()]
    keeps = any(unicodedata.category(part)[0] == "M" and normal(part) == part for each in points for part in nfd(each))
    return normal("é") == "e" and keeps and nfd("".join(points)) != "".join(map(nfd, points))


def compare(tokenizer: Tokenizer, texts: list[str], longest: Sequence[int | None] = (), *, whole: bool = False) -> None:
    """`longest`: of each text; () = no limit. `whole`: also labels, words and sentences, which are plain there."""
    longest, others = longest or [None] * len(texts), 0
    given = {"tokenizer": carry_tokenizer(tokenizer), "texts": texts, "longest": longest}
    for text, limit, found in zip(texts, longest, evaluate(CODE, given), strict=True):
        wanted = plain(expected(tokenizer, text, limit))
        if is_stirred(tokenizer, text):  # most have the same ids all the same
            others += found["ids"] != wanted["ids"]
            continue
        assert found["ids"] == wanted["ids"], ascii(text)
        assert found["offsets"] == wanted["offsets"], ascii(text)
        for name, value in wanted["axis"].items() if whole else ():
            assert found["axis"][name] == value, (name, ascii(text))
    assert others <= 2


@pytest.mark.parametrize("kind", ["minilm", "lowercase", "cased"])
def test_reads_as_python_does(kind: str, minilm: Tokenizer) -> None:
    print(f"seed {SEED}")
    tokenizer = minilm if kind == "minilm" else trained(kind == "lowercase")
    draw, names = random.Random(SEED), names_of(tokenizer)
    compare(tokenizer, [*ODD, *(draw_text(draw, names) for _ in range(2000))])


def draw_plain(draw: random.Random) -> str:
    """Sentences of some languages."""
    words = [
        "unrelatably",
        "tired",
        "café",
        "Straße",
        "Привет",
        "1990",
        "3.5",
        "at",
        "(an",
        "ox)",
        "猫",
        "日本",
        "🐈",
        "x2",
    ]
    ends = [". ", "! ", "? ", ".\n"]
    sentences = (" ".join(draw.choices(words, k=draw.randint(1, 8))) for _ in range(draw.randint(1, 4)))
    return "".join("The " + each + draw.choice(ends) for each in sentences).strip() + "。他来了！"


def test_labels_words_and_sentences(minilm: Tokenizer) -> None:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    compare(minilm, ["", " a ", *(draw_plain(draw) for _ in range(300))], whole=True)


def test_keeps_the_beginning_of_a_long_text(minilm: Tokenizer) -> None:
    text, longest = "Unrelatably tired, \U0001f408 she slept.", (2, 3, 6, 9, 11, 12, 13)
    assert len(minilm.encode(text).ids) == 12
    compare(minilm, [text] * len(longest), longest, whole=True)


def test_refuses_what_it_reads_differently(minilm: Tokenizer) -> None:
    described = carry_tokenizer(minilm)
    swapped = {"slept": "tired", "tired": "slept"}
    changes: dict[str, Any] = {
        "names": [swapped.get(name, name) for name in described["names"]],
        "alone": described["alone"][2:],
        "removed": described["removed"][2:],
        "probes": [*described["probes"][:-1], "headwise"],
        "settings": {
            **described["settings"],
            "normalizer": {**described["settings"]["normalizer"], "lowercase": False},
        },
    }
    code = """
        const { Tokenizer } = await use("model/tokenizer.js");
        return given[1].map((change) => {
            try { new Tokenizer({ ...given[0], ...change }); } catch (error) { return error.said; }
        });
    """
    for name, said in zip(changes, evaluate(code, [described, [{k: v} for k, v in changes.items()]]), strict=True):
        assert said[0].startswith("This browser divides texts into tokens differently from Python"), name
        assert said[1]["why"].endswith(f", {described['checksum']}"), name


@pytest.mark.parametrize("kind", ["model", "normalizer", "splitter", "template", "added"])
def test_other_kinds_are_not_carried(kind: str) -> None:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3}
    if kind == "model":
        backend = tokenizers.Tokenizer(models.Unigram([("a", 0.0)]))
    else:
        backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.NFKC() if kind == "normalizer" else normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.Whitespace() if kind == "splitter" else pre_tokenizers.BertPreTokenizer()
    if kind != "template":
        backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    if kind == "added":
        backend.add_tokens(["headwise"])
    with pytest.raises(ArgumentError, match=r"^a page can carry a tokenizer of BERT: .* Received: .*; added: "):
        carry_tokenizer(Tokenizer(backend))


def test_the_library_is_the_pinned_one() -> None:
    folder = Path(str(STATIC / "model"))
    checksum, name = (folder / "tokenizers.sha256").read_text("utf-8").splitlines()[0].split()
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum, "run: scripts/tokenizers"
    assert "const $model_tokenizers_min_mjs = " in assemble("model/tokenizer.js")
