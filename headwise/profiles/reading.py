"""Reads a corpus once: cuts its texts into windows, and yields the batches that the model reads one after the other."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import DtypeError, brief
from headwise.profiles.examples import Window
from headwise.profiles.resuming import digest_text, skip
from headwise.profiles.windows import Encode, cut_windows, make_batches, split_text

POOL = 8  # batches that are sorted by length together; a checkpoint is written between pools


@dataclass(frozen=True)
class Read:
    """A batch of windows. After the last batch of the corpus comes a `Read` without windows.

    A pool is several batches that are sorted by length together. A run can be resumed only at the end of a pool.

    Args:
        texts: the number of texts of the corpus up to the end of the batch's pool.
        digest: if the batch is the last of its pool: the digest of these texts. Else "".
    """

    windows: list[Window]
    texts: int
    digest: str = ""


@dataclass(frozen=True)
class Reading:
    """A corpus, and the options of reading it.

    Args:
        texts: any iterable of strings.
        encode: the tokenizer function of the model.
        length, batch: as for `profile`.
        before, digest, checkpoint: to resume a run: the number of texts that it has read, which are skipped; their
            digest; the file of its checkpoint.
    """

    texts: Iterable[str]
    encode: Encode
    length: int
    batch: int
    before: int = 0
    digest: str = ""
    checkpoint: Path | None = None

    def __iter__(self) -> Iterator[Read]:
        """Yield all remaining batches.

        Raises:
            ArgumentError: the checkpoint belongs to another corpus.
            DtypeError: something in the corpus is not a string. Errors of reading the corpus pass through.
        """
        digest = hashlib.sha256()
        texts = (piece for text in self.texts for piece in split_text(_checked(text)))
        if self.checkpoint is not None:
            skip(texts, self.before, self.digest, digest, self.checkpoint)
        pool: list[Window] = []
        tokens = 0
        for number in itertools.count(self.before):
            text = next(texts, None)
            if text is None or tokens >= POOL * self.batch:  # a pool ends with a text: there a run can be resumed
                batches = make_batches(pool, self.batch)
                for place, windows in enumerate(batches, start=1):
                    yield Read(windows, number, digest.hexdigest() if place == len(batches) else "")
                pool, tokens = [], 0
                if text is None:
                    yield Read([], number)
                    return
            digest_text(digest, text)
            for window in cut_windows(text, number, self.encode, self.length):
                pool.append(window)
                tokens += len(window.tokens.ids)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise DtypeError(f"texts: expected strings. Received: {type(text).__name__} {brief(text)}")
    return text
