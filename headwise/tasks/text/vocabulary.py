"""`Vocabulary`: subwords that are learned from the texts of a task. Decoding returns exactly the encoded text.

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) over bytes (Radford et al. 2019, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from headwise.errors import ArgumentError, CheckpointError
from headwise.files import replacing
from headwise.text import Tokenizer, Tokens, as_tokens
from headwise.text.tokenizer import Encoded, check_text, load_backend

PAD, BEGIN, END = SIGNS = ("[PAD]", "[BOS]", "[EOS]")
BYTES = 256


class Vocabulary:
    """Turns text into ids and back. Every byte has a token, so no text is unknown; case, spaces and line ends are kept.

    (A vocabulary that is made from an encoder's tokenizer has the properties of that tokenizer.)

    Signs such as [EOS] inside a text are ordinary text. The file is a tokenizer.json, which `headwise.text.Tokenizer`
    and Hugging Face's tokenizers read.

    >>> vocabulary = Vocabulary.train(texts, 8000)
    >>> vocabulary.decode(vocabulary.encode(["Zwei Hunde  spielen."])[0])
    'Zwei Hunde  spielen.'
    """

    pad: int  #: ids that stand for no text: [PAD], and the signs that begin and end a text
    begin: int
    end: int

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # inside a text they are text
        signs = backend.encode("").ids
        pads = (backend.token_to_id(name) for name in (PAD, "<pad>"))
        pad = next((id_ for id_ in pads if id_ is not None), None)
        if len(signs) != 2 or pad is None:
            raise CheckpointError(f"expected the tokenizer of a headwise task, with {PAD}, a first and a last token")
        self.begin, self.end = signs
        self.pad = pad
        self._backend = backend
        self._tokenizer = Tokenizer(backend)

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learn the vocabulary of some texts: the same texts give the same vocabulary.

        Args:
            texts: the texts from which it is learned.
            size: the largest number of tokens, including bytes and signs. Fewer if no more pieces occur twice in the
                texts.

        Raises:
            ArgumentError: a size without room for the bytes and the signs; a text that is not valid Unicode.
            DtypeError: a text that is not a string.
        """
        if not isinstance(size, int) or size < BYTES + len(SIGNS):
            raise ArgumentError(
                f"vocab_size: expected at least {BYTES + len(SIGNS)} tokens, {BYTES} bytes and {len(SIGNS)} signs. "
                f"Received: {size!r}"
            )
        backend = tokenizers.Tokenizer(models.BPE())
        # A space before every text, so that its first word is the same token as anywhere else; removed at the end.
        backend.normalizer = normalizers.Prepend(" ")
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[*SIGNS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        texts = list(texts)
        for text in texts:
            check_text(text)
        backend.train_from_iterator(texts, trainer)
        ids = [(name, backend.token_to_id(name)) for name in (BEGIN, END)]
        backend.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ids)
        return cls(backend)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Load the vocabulary from a tokenizer.json that `save` wrote.

        Raises:
            CheckpointError: the file does not exist, or is of another kind.
        """
        return cls(load_backend(path))

    def save(self, path: Path) -> None:
        """Write the vocabulary to a file. OSError passes through."""
        with replacing(path) as part:
            part.write_text(self._backend.to_str(pretty=True), encoding="utf-8")

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def encode(
        self, texts: Sequence[str], max_length: int | None = None, *, keep: Literal["beginning", "end"] = "beginning"
    ) -> list[list[int]]:
        """Return the ids of each text, with signs (special tokens) around it. Too long texts keep what `keep` names.

        Raises:
            ArgumentError: a text that is not valid Unicode; a max_length without room for the two signs.
            DtypeError: a text that is not a string.
        """
        for text in texts:
            check_text(text)
        found = [each.ids for each in self._backend.encode_batch_fast(list(texts))]
        return [self.cut(ids, max_length, keep=keep) for ids in found]

    @staticmethod
    def cut(
        ids: Sequence[int], max_length: int | None, *, keep: Literal["beginning", "end"] = "beginning"
    ) -> list[int]:
        """Cut the ids of a text like `encode`: its beginning or its end is kept."""
        return [ids[i] for i in _kept(len(ids), max_length, keep)]

    def read(self, text: str) -> Encoded:
        """Tokenize one text without cutting it, for `cut` and `tokens`. Errors as for `encode`."""
        return self._tokenizer.read(text)

    def tokens(
        self, read: Encoded, max_length: int | None = None, *, keep: Literal["beginning", "end"] = "beginning"
    ) -> Tokens:
        """Return the tokens of one text, cut as by `encode`, with labels for display."""
        return self._tokenizer.tokens(read).take(_kept(len(read.ids), max_length, keep))

    def named(self, ids: Sequence[int]) -> Tokens:
        """Return the tokens with these ids (of a text that a model wrote), with labels for display."""
        (tokens,) = as_tokens([[self._backend.id_to_token(id_) for id_ in ids]])
        return replace(tokens, ids=tuple(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without signs. Bytes that are not part of a character become �."""
        return self._backend.decode(list(ids), skip_special_tokens=True)


def _kept(size: int, max_length: int | None, keep: str) -> Sequence[int]:
    """Return the indices of the tokens that stay when a text of `size` tokens is cut at its end or at its beginning.

    They are the first and the last token (the signs around the text), and as many as fit between them.
    """
    if max_length is None or size <= max_length:
        return range(size)
    if max_length < 2:
        raise ArgumentError(f"max_length: expected at least 2, the signs around a text. Received: {max_length}")
    if keep == "beginning":
        return [*range(max_length - 1), size - 1]
    return [0, *range(size - max_length + 1, size)]
