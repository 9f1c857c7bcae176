"""Text to tokens, with labels that a person can read.

A model reads token ids; a person reads the text. `Tokens` keeps both side by side: every label is cut out of the
original text, so Chinese, accents and emoji appear as they were written, whatever the tokenizer made of them.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError, CheckpointError, DtypeError

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Tokens:
    """One text as a model reads it, and as a person does. Every tuple has one entry a token.

    A label shows the whole characters that its token stands for, and where it helps one of these:

        ##ing      the token continues the word of the token before it (the mark that readers of BERT know)
        🐈(2/3)    three tokens share this one character, and this is the second of them
        ⏎ ⇥ ␣      a newline, a tab, a token that is nothing but a space

    A special token shows its name, [CLS]. An [UNK] shows the text that it hides, and is flagged in `unknown`.
    """

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]  # the tokenizer's own: it read text[start:end]; (0, 0) for what it added
    special: tuple[bool, ...]  # [CLS], [SEP], [MASK]: to the model a sign, not text
    text: str
    cut: int = 0  # how many tokens at the end of the text did not fit
    unknown: tuple[bool, ...] = ()  # the vocabulary has no token for this text: all the model sees is [UNK]


class Tokenizer:
    """Encodes text exactly as a checkpoint's own tokenizer does, and never pads.

    >>> Tokenizer.from_pretrained(folder).encode("Unbelievable!").labels
    ('[CLS]', 'Unbelievable', '!', '[SEP]')
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A tokenizer.json remembers the truncation and padding of whoever saved it: MiniLM's cuts at 128 tokens.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        unknown = getattr(backend.model, "unk_token", None)
        self._backend = backend
        self._unknown_id = None if unknown is None else backend.token_to_id(unknown)
        self._special_ids = {id_ for id_, token in added.items() if token.special} - {self._unknown_id}

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer in a checkpoint's local folder: its tokenizer.json, else the WordPiece of its vocab.txt.

        Raises:
            CheckpointError: neither file is there, or the one that is cannot be used.
        """
        folder = Path(folder)
        if (folder / "tokenizer.json").is_file():
            return cls(_load_tokenizer_json(folder / "tokenizer.json"))
        if (folder / "vocab.txt").is_file():
            return cls(_build_wordpiece(folder))
        raise CheckpointError(f"no tokenizer in {folder}: expected tokenizer.json or vocab.txt")

    def encode(self, text: str, max_length: int | None = None) -> Tokens:
        """One text with its special tokens. Where it is longer than `max_length` tokens, its beginning is kept:
        [CLS], as much text as fits, [SEP]; `cut` says how many tokens that left out.

        Raises:
            DtypeError: `text` is not a string.
            ArgumentError: `text` is not valid Unicode, or `max_length` has no room for the special tokens.
        """
        if not isinstance(text, str):
            raise DtypeError(f"text: expected a string, received {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as cause:
            raise ArgumentError(
                f"text: expected valid Unicode, received half a surrogate pair at position {cause.start}; "
                "was it decoded with errors='surrogateescape'?"
            ) from cause

        encoding = self._backend.encode(text)
        ids, offsets = encoding.ids, encoding.offsets  # every access makes a new list
        special = [id_ in self._special_ids for id_ in ids]
        labels = self._label(text, encoding, special)  # before the cut: of a cat cut in half, 🐈(1/3) still says 3
        kept = _fit(encoding.special_tokens_mask, max_length)
        return Tokens(
            ids=tuple(ids[i] for i in kept),
            labels=tuple(labels[i] for i in kept),
            offsets=tuple(offsets[i] for i in kept),
            special=tuple(special[i] for i in kept),
            text=text,
            cut=len(ids) - len(kept),
            unknown=tuple(ids[i] == self._unknown_id for i in kept),
        )

    def _label(self, text: str, encoding: tokenizers.Encoding, special: list[bool]) -> list[str]:
        ids, names = encoding.ids, encoding.tokens
        character_at = _characters(text)
        # The characters of each token, whole even where it holds only some bytes of one.
        touched = [
            [] if is_special else list(dict.fromkeys(character_at[start:end]))
            for (start, end), is_special in zip(encoding.offsets, special, strict=True)
        ]
        sharing = Counter(span for spans in touched for span in spans)
        seen: Counter[tuple[int, int]] = Counter()
        labels = []
        for i, (word_before, word) in enumerate(pairwise([None, *encoding.word_ids])):
            spans = touched[i]
            seen.update(spans)
            if special[i]:
                label = names[i]
            elif not spans:  # byte-level tokenizers may give a lone space an empty offset
                label = _trim(self._backend.decode([ids[i]]))
            else:
                label = _trim("".join(_visible(text, span) + _part(seen[span], sharing[span]) for span in spans))
                start = spans[0][0]
                continues = (
                    word is not None
                    and word == word_before
                    and seen[spans[0]] == 1  # (2/3) says it already
                    and not text[start].isspace()
                    and not text[start - 1].isspace()  # " w" in two tokens: the second begins the word
                )
                label = f"##{label}" if continues else label
            labels.append(label)
        return labels


def _fit(added: list[int], max_length: int | None) -> list[int]:
    """Which tokens stay: all, or those added at both ends (where `added` is 1) and what fits between them."""
    size = len(added)
    if max_length is None or size <= max_length:
        return list(range(size))
    if max_length < sum(added):
        raise ArgumentError(f"max_length: expected at least {sum(added)}, the special tokens, received {max_length}")
    tail = added[::-1].index(0)
    return [*range(max_length - tail), *range(size - tail, size)]


# --- What a person calls a character ----------------------------------------------------------------------------------

_ZERO_WIDTH_JOINER = "\u200d"
_PICTURES = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def _characters(text: str) -> list[tuple[int, int]]:
    """For every code point the (start, end) of the character it is part of: é may be two code points, 👨‍👩‍👧 is five.

    These are the grapheme clusters of Unicode (UAX 29) as far as texts need them; the standard library has none.
    """
    if text.isascii():
        return [(i, i + 1) for i in range(len(text))]
    spans: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and _joins(text[start:end], text[end]):
            continue
        spans += [(start, end)] * (end - start)
        start = end
    return spans


def _joins(character: str, following: str) -> bool:
    """Whether a code point belongs to the character before it."""
    if character in _PICTURES:
        return False
    category = unicodedata.category(following)
    return (
        category in ("Mn", "Mc", "Me")  # accents, vowel signs, variation selectors
        or following == _ZERO_WIDTH_JOINER
        or (character[-1] == _ZERO_WIDTH_JOINER and category == "So")  # the next person of 👨‍👩‍👧
        or "\U0001f3fb" <= following <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= following <= "\U000e007f"  # tags, which spell the flag of Scotland
        or (len(character) == 1 and _is_regional(character) and _is_regional(following))  # two letters make a flag
    )


def _is_regional(code_point: str) -> bool:
    return "\U0001f1e6" <= code_point <= "\U0001f1ff"


def _visible(text: str, span: tuple[int, int]) -> str:
    """Newlines and tabs as pictures; other lone characters without ink, some of which reorder a page, by number."""
    character = text[slice(*span)]
    if character in _PICTURES:
        return _PICTURES[character]
    return character if len(character) > 1 or character.isprintable() else f"<U+{ord(character):04X}>"


def _part(number: int, count: int) -> str:
    return f"({number}/{count})" if count > 1 else ""


def _trim(label: str) -> str:
    """Without spaces around it, unless spaces are all there is."""
    return label.strip(" ") or "␣" * len(label)


# --- Reading a tokenizer's files --------------------------------------------------------------------------------------


def _load_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_file(str(path))
    except Exception as cause:  # the Rust library raises plain Exception
        raise CheckpointError(f"cannot read {path}: {cause}; copy or download the file again") from cause


def _build_wordpiece(folder: Path) -> tokenizers.Tokenizer:
    """BERT's own recipe, for checkpoints from before tokenizer.json: clean, split at spaces and punctuation, longest
    piece first."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    settings = _read_settings(folder / "tokenizer_config.json")
    vocabulary = _read_vocabulary(folder / "vocab.txt")
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None: as lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    names = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in vocabulary]
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return backend


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        with path.open(encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): id_ for id_, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as cause:
        raise CheckpointError(f"cannot read {path}: {cause}; expected one token a line, in UTF-8") from cause
    if missing := {"[CLS]", "[SEP]", "[UNK]"} - vocabulary.keys():
        raise CheckpointError(f"{path} is not a BERT vocabulary: it has no {', '.join(sorted(missing))}")
    return vocabulary


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"cannot read {path}: {cause}; expected JSON") from cause
    if not isinstance(settings, dict):
        raise CheckpointError(f"cannot read {path}: expected a JSON object, received {type(settings).__name__}")
    return settings
