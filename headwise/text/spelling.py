"""How vocabularies spell tokens: turns the name of a token in the vocabulary back into its text.

    Ġthe ĊçĮ«       GPT-2, Llama 3, Qwen: each byte of the UTF-8 text is written as one letter, a space as Ġ
    ▁the ▁ <0xE7>   sentencepiece, T5, Llama 2, Gemma: ▁ is a space; unknown characters are numbered bytes
    un ##believ     WordPiece, BERT: ## means that the token continues the word
    un believ</w>   GPT, CLIP: </w> means that the word ends; CLIP writes bytes as GPT-2 does
    the ' ' t h e   characters, or pieces of a text as they are: one of them is a space or begins with one

Only the names show which spelling it is, so all names of a batch are examined. A name in none of these spellings
stands for itself.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}

_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")
_CONTINUES = re.compile(r"##[^#]")  # "##" alone and "###" are Markdown headings
WORD_END = "</w>"

_SIGN = re.compile(
    r"\[(CLS|SEP|PAD|MASK|BOS|EOS|unused\d+)\]|<[|｜].+[|｜]>"
    r"|</?(s|pad|mask|cls|sep|bos|eos|mask_\d+|unused\d+|extra_id_\d+|(start|end)_of_(turn|image)|image(_soft_token)?)>"
)


def is_sign(name: str) -> bool:
    """Whether `name` is the name of a special token: [CLS], <s>, <|im_start|>. [UNK] is not: it stands for text."""
    return _SIGN.fullmatch(name.strip(" ")) is not None  # some names include the space before the token


def is_unknown(name: str) -> bool:
    """Whether `name` is the name of the token for unknown text, such as [UNK]."""
    return name in ("[UNK]", "<unk>")


@dataclass(frozen=True)
class Spelling:
    """How one vocabulary spells its tokens."""

    letters_are_bytes: bool = False  # GPT-2: Ġ is a space
    spaces_are_marked: bool = False  # sentencepiece: ▁ is a space
    word_ends_are_marked: bool = False  # CLIP: </w>
    spaces_are_written: bool = False  # characters of a text: a space is a space

    @classmethod
    def of(cls, batch: Iterable[Sequence[str]]) -> Spelling:
        """Recognise the spelling of a vocabulary from the names of the tokens of some texts, without special tokens."""
        batch = [list(names) for names in batch]
        every = {name for names in batch for name in names}
        ended = any(name.endswith(WORD_END) and name != WORD_END for name in every)
        if sum("▁" in name for name in every) > sum(map(bool, map(_CONTINUES.match, every))):
            return cls(spaces_are_marked=True)
        if _are_bytes([[name.removesuffix(WORD_END) for name in names] for names in batch]):
            return cls(letters_are_bytes=True, word_ends_are_marked=ended)
        return cls(word_ends_are_marked=ended, spaces_are_written=any(name.startswith(" ") for name in every))

    @property
    def has_spaces(self) -> bool:
        """Whether the names of the tokens show where spaces are."""
        if self.letters_are_bytes:
            return not self.word_ends_are_marked
        return self.spaces_are_marked or self.spaces_are_written

    def find_bytes(self, name: str) -> bytes:
        """Return the UTF-8 bytes that a token spells, without the mark </w>. Not for special tokens."""
        if self.ends_word(name):
            name = name.removesuffix(WORD_END)
        if self.letters_are_bytes:
            known = all(letter in _BYTES for letter in name)  # otherwise a token added to the vocabulary
            return bytes(_BYTES[letter] for letter in name) if known else _utf8(name)
        if byte := _BYTE.match(name):
            return bytes([int(byte[1], 16)])
        return _utf8(name.replace("▁", " ") if self.spaces_are_marked else name)

    def continues(self, name: str, before: str) -> bool:
        """Return whether `name` continues the word of the token `before`. For spellings that do not show spaces."""
        if self.word_ends_are_marked:
            return not before.endswith(WORD_END)
        if _BYTE.match(name) and _BYTE.match(before):
            return True
        return self.is_piece(name)

    def is_piece(self, name: str) -> bool:
        """Return whether `name` is WordPiece's name of a token that continues a word (##ing)."""
        return not self.has_spaces and _CONTINUES.match(name) is not None

    def ends_word(self, name: str) -> bool:
        """Return whether `name` has the mark </w> of the end of a word."""
        return self.word_ends_are_marked and name.endswith(WORD_END)


def _utf8(name: str) -> bytes:
    return name.encode("utf-8", "replace")  # a lone surrogate becomes a question mark


def _are_bytes(batch: list[list[str]]) -> bool:
    """Return whether the names spell bytes in GPT-2's letters, one letter for each byte.

    This is so if the bytes are valid UTF-8, except for characters cut off at the ends, and contain a space, a newline
    or a non-ASCII character. (ASCII without spaces looks the same in either spelling.) A vocabulary in another spelling
    would be mistaken only if its é, ü or Ā were next to letters that happen to complete a UTF-8 sequence.
    """
    evidence = False
    for names in batch:
        for in_alphabet, run in groupby(names, key=lambda name: all(letter in _BYTES for letter in name)):
            if not in_alphabet:
                continue
            spelt = "".join(run)
            data = bytes(_BYTES[letter] for letter in spelt)
            whole = data.lstrip(bytes(range(0x80, 0xC0)))
            if len(data) - len(whole) > 3:
                return False
            try:
                text = codecs.getincrementaldecoder("utf-8")().decode(whole)
            except UnicodeDecodeError:
                return False
            evidence |= not text.isascii() or any(letter in spelt for letter in "ĠĊĉč")
    return evidence
