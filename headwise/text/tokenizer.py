"""The tokenizer of a checkpoint, read from its folder: from text to ids, offsets and labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headwise.errors import ArgumentError, CheckpointError, DtypeError, brief
from headwise.files import read_json
from headwise.text.labels import label, own_offsets
from headwise.text.spelling import Spelling, is_sign
from headwise.text.tokens import Tokens

if TYPE_CHECKING:
    import tokenizers


class Encoded(NamedTuple):
    """A text and all its tokens, without labels: making labels takes time (`Tokenizer.tokens` does it)."""

    text: str
    ids: list[int]
    encoding: tokenizers.Encoding


class Tokenizer:
    """Encodes texts exactly like the checkpoint's original tokenizer, without padding.

    >>> Tokenizer.from_pretrained(folder).encode("Unbelievable!").labels
    ('[CLS]', 'Unbelievable', '!', '[SEP]')
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A tokenizer.json contains the truncation and padding of its author: MiniLM's cuts at 128 tokens.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        unknown = getattr(backend.model, "unk_token", None) or "<unk>"  # a Unigram model does not have this attribute
        self._backend = backend
        self._unknown_id = backend.token_to_id(unknown)
        self._special_ids = {id_ for id_, token in added.items() if token.special} - {self._unknown_id}

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer in a checkpoint's folder: its tokenizer.json, otherwise BERT's WordPiece with vocab.txt.

        Raises:
            CheckpointError: both files are missing, or the file is invalid.
        """
        folder = Path(folder)
        if (folder / "tokenizer.json").is_file():
            return cls(load_backend(folder / "tokenizer.json"))
        if (folder / "vocab.txt").is_file():
            return cls(_build_wordpiece(folder))
        raise CheckpointError("no tokenizer in {folder}: expected tokenizer.json or vocab.txt", folder=folder)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The underlying tokenizer of the `tokenizers` library, for processing many texts at once."""
        return self._backend

    def encode(self, text: str, max_length: int | None = None) -> Tokens:
        """Encode one text, with special tokens, as `Tokens`.

        If there are more than `max_length` tokens, the beginning is kept: [CLS], as much text as fits, [SEP]. `cut` is
        the number of tokens left out.

        Raises:
            DtypeError: `text` is not a string.
            ArgumentError: `text` is not valid Unicode, or `max_length` has no room for the special tokens.
        """
        return self.tokens(self.read(text), max_length)

    def read(self, text: str) -> Encoded:
        """Encode one text, special tokens included, without cutting and without labels. Errors as for `encode`."""
        check_text(text)
        encoding = self._backend.encode(text)
        return Encoded(text, encoding.ids, encoding)

    def tokens(self, read: Encoded, max_length: int | None = None) -> Tokens:
        """Make the `Tokens` that `encode` would return, from a text that `read` has encoded."""
        text, ids, encoding = read
        names = encoding.tokens  # every access creates a new list
        wordpieces = type(self._backend.model).__name__ == "WordPiece"  # a text may look like another spelling: ×«, Ġ
        offsets = encoding.offsets if wordpieces else own_offsets(names, encoding.offsets)
        special = [id_ in self._special_ids for id_ in ids]
        word_ids = [None if sign else word for word, sign in zip(encoding.word_ids, special, strict=True)]
        # Before cutting, so that a character cut in half still counts all its tokens: 🐈(1/3).
        spelling = Spelling() if wordpieces else Spelling.of([[name for name in names if not is_sign(name)]])
        labels = label(text, names, offsets, special, spelling)
        whole = Tokens(
            ids=tuple(ids),
            labels=tuple(labels),
            offsets=tuple(offsets),
            special=tuple(special),
            text=text,
            unknown=tuple([id_ == self._unknown_id for id_ in ids]),
            word_ids=tuple(word_ids),
        )
        return whole.take(_fit(encoding.special_tokens_mask, max_length))


def check_text(text: object, name: str = "text") -> None:
    """Raise DtypeError if `text` is not a string, ArgumentError if it is not valid Unicode."""
    if not isinstance(text, str):
        raise DtypeError(f"{name}: expected a string. Received: {type(text).__name__} {brief(text)}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise ArgumentError(
            f"{name}: expected valid Unicode. Received: a lone surrogate at position {cause.start}. "
            "Was it decoded with errors='surrogateescape'?"
        ) from cause


def _fit(added: list[int], max_length: int | None) -> list[int]:
    """Return the indices of the tokens to keep: all, or the special tokens (`added` is 1) and as much text as fits."""
    size = len(added)
    if max_length is None or size <= max_length:
        return list(range(size))
    if max_length < sum(added):
        raise ArgumentError(
            f"max_length: expected at least {sum(added)} (special tokens). Received: max_length={max_length}"
        )
    tail = added[::-1].index(0)
    return [*range(max_length - tail), *range(size - tail, size)]


# --- Reading a tokenizer's files --------------------------------------------------------------------------------------


def load_backend(path: Path) -> tokenizers.Tokenizer:
    """Load the tokenizer of the Rust library from a tokenizer.json. Raises CheckpointError if it cannot be read."""
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
        backend.encode("")  # finds signs that are used, but not described
        backend.encode("", "")
        return backend
    except BaseException as cause:  # the Rust library raises plain Exception, or PanicException, which is none
        if not isinstance(cause, Exception) and type(cause).__name__ != "PanicException":
            raise
        raise CheckpointError(
            "cannot read {path}: {cause}. Copy or download the file again", path=path, cause=cause
        ) from cause


def _build_wordpiece(folder: Path) -> tokenizers.Tokenizer:
    """Build BERT's WordPiece tokenizer from the settings in a folder, for checkpoints older than tokenizer.json.

    The text is cleaned and split at spaces and punctuation, then the longest pieces are matched first.
    """
    from tokenizers import BertWordPieceTokenizer
    from tokenizers import Tokenizer as Backend

    config = folder / "tokenizer_config.json"
    settings = read_json(config) if config.is_file() else {}
    made = BertWordPieceTokenizer(
        _read_vocabulary(folder / "vocab.txt"),
        lowercase=settings.get("do_lower_case", True),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None = the same as lowercase
    )
    return Backend.from_str(made.to_str())


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        with path.open(encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): id_ for id_, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as cause:
        raise CheckpointError(
            "cannot read {path}: {cause}. Expected one token per line, in UTF-8", path=path, cause=cause
        ) from cause
    if missing := {"[CLS]", "[SEP]", "[UNK]"} - vocabulary.keys():
        raise CheckpointError(
            "{path} is not a BERT vocabulary: it has no {missing}", path=path, missing=", ".join(sorted(missing))
        )
    if "<s>" in vocabulary:
        raise CheckpointError(
            f"{path} is not a BERT vocabulary: it has <s>, as that of MPNet, whose signs are others. Expected "
            "tokenizer.json; transformers writes it with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    return vocabulary
