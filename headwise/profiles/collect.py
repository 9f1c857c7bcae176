"""`profile`: reads a corpus once, window by window, and keeps sums, sketches and a few examples of every head."""

from __future__ import annotations

import gc
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headwise.capture.context import watch
from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError, DtypeError, RecordError, brief
from headwise.profiles.block import block_scores
from headwise.profiles.examples import KEPT, Window
from headwise.profiles.measuring import Batch, measure
from headwise.profiles.memory import give_back
from headwise.profiles.profile import Profile
from headwise.profiles.resuming import digest_of, digest_text, partial, resumed, skip
from headwise.profiles.saving import save
from headwise.profiles.sums import LayerSums
from headwise.profiles.windows import batches_of, pieces_of, windows_of
from headwise.records import Seen

POOL = 8  # batches that are sorted by length together; a checkpoint is written between pools

Tell = Callable[[Profile], object]


def profile(
    model: Pretrained,
    texts: Iterable[str],
    *,
    name: str | None = None,
    length: int = 128,
    batch: int = 2048,
    kept: int = KEPT,
    max_tokens: int | None = None,
    only: Sequence[int | str] | None = None,
    out: Path | None = None,
    every: float = 10.0,
    tell: Tell = lambda so_far: None,
) -> Profile:
    """What every head of a model does over a corpus. Memory does not depend on the size of the corpus.

    Args:
        model: of `headwise.capture.pretrained.load_pretrained`, or `Pretrained(name, model, tokenizer.encode)` of a
            model that takes ids and `attention_mask=`.
        texts: any iterable of strings, read once; `headwise.profiles.corpus` has files and data sets. One of more than
            50,000 characters counts as several.
        name: of the corpus. Default: that of a `Corpus`, or "texts".
        length: a longer text is cut into windows of at most so many tokens, special ones included.
        batch: tokens that the model reads at once, padding included.
        kept: examples for each head.
        max_tokens: stop after the first pool of batches that reaches so many tokens. Default: the whole corpus.
        only: the attention modules, as `headwise.watch(only=)` takes them. Default: all.
        out: the file to write. Until it is there, checkpoints are written beside it (`partial(out)`), from which the
            same call goes on after an interruption: with the same result, to the last bit on one thread.
        every: seconds between checkpoints.
        tell: is called with the profile so far after each batch.

    Returns:
        Profile, complete.

    Raises:
        ArgumentError: an argument is out of range, there is no text with a token in the corpus, or the checkpoint is
            of another model, corpus or options.
        RecordError: no self-attention was recorded, or other modules than in the batches before.
        FileError: the checkpoint is damaged or cannot be written.
    """
    longest = model.max_length
    if isinstance(texts, str):
        raise DtypeError(f"texts: expected several texts, such as [text]. Received: one text, {brief(texts)}")
    if length < 4 or (longest is not None and length > longest):
        raise ArgumentError(f"length: expected 4 to {longest or 'any number'} tokens. Received: length={length}")
    for given, value in (("batch", batch), ("kept", kept), ("max_tokens", 1 if max_tokens is None else max_tokens)):
        if value < 1:
            raise ArgumentError(f"{given}: expected at least 1. Received: {given}={value}")
    options = {"length": length, "batch": batch, "kept": kept, "only": None if only is None else list(only)}
    options["max_tokens"] = max_tokens
    found = Profile(
        model.name, name or str(getattr(texts, "name", "texts")), options, model_digest=digest_of(model.model)
    )
    reading = hashlib.sha256()
    left = (piece for text in texts for piece in pieces_of(_checked(text)))
    checkpoint = None if out is None else partial(out)
    if checkpoint is not None and checkpoint.exists():
        found = resumed(checkpoint, found)
        skip(left, found, reading, checkpoint)
    if not found.layers:
        found.block = block_scores(model, only)
    written = time.monotonic()
    for pool, digest in _pools(found, left, reading, model, POOL * batch):
        for windows in batches_of(pool, batch):
            _add(found, windows, model, only)
            gc.collect(1)  # what a watch recorded is in cycles, which Python would leave until there are many
            tell(found)
        give_back()
        found.corpus_digest = digest
        if max_tokens is not None and found.tokens >= max_tokens:
            break
        if checkpoint is not None and time.monotonic() - written >= every:
            save(found, checkpoint)
            written = time.monotonic()
    if not found.layers:
        raise ArgumentError(f"{found.corpus}: there is no text in it: expected at least one word")
    found.complete = True
    if out is not None:
        save(found, out)
        partial(out).unlink(missing_ok=True)
    return found


def _pools(
    found: Profile, texts: Iterator[str], reading: Any, model: Pretrained, size: int
) -> Iterator[tuple[list[Window], str]]:
    """Windows of whole texts, at least `size` tokens at a time, and the digest of the texts up to there.

    A pool ends with a text, so that a run can go on at the next one.
    """
    pool: list[Window] = []
    tokens = 0
    for number in itertools.count(found.texts):
        text = next(texts, None)
        if text is None or tokens >= size:
            if pool:
                found.texts = number
                yield pool, reading.hexdigest()
            pool, tokens = [], 0
            if text is None:
                found.texts = number
                return
        digest_text(reading, text)
        for window in windows_of(text, number, model.encode, found.options["length"]):
            pool.append(window)
            tokens += len(window.tokens.ids)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise DtypeError(f"texts: expected strings. Received: {type(text).__name__} {brief(text)}")
    return text


def _add(found: Profile, windows: Sequence[Window], model: Pretrained, only: Sequence[int | str] | None) -> None:
    """Read a batch, and add what every head did."""
    with watch(model.model, only=None if only is None else list(only)) as seen:
        model.read([each.tokens for each in windows])
    layers = _layers_of(seen, found)
    batch = Batch.of(windows)
    for sums, record in zip(layers, seen, strict=True):
        measure(sums, record, batch, found.options["length"])
    found.layers = layers
    found.windows += len(windows)
    for each in windows:
        found.tokens += len(each.tokens.ids)
        for code, label in zip(each.tokens.ids, each.tokens.labels, strict=True):
            before = found.names.setdefault(code, label)
            if label != before and label.lower() == before.lower():  # a vocabulary without capitals
                found.names[code] = label.lower()


def _layers_of(seen: Seen, found: Profile) -> list[LayerSums]:
    """The sums of each record; new ones for the first batch."""
    names = [record.site.name if record.site else str(i) for i, record in enumerate(seen)]
    if not names:
        said = [f"{site.name} was {site.status}: {site.how}" for site in seen.coverage()][:1] or seen.coverage().notes
        raise RecordError(f"a profile needs attention: none was recorded. {'. '.join(said)}")
    if not found.layers:
        kept = found.options["kept"]
        return [LayerSums(name, record.shape[1], kept) for name, record in zip(names, seen, strict=True)]
    before = [sums.name for sums in found.layers]
    if names != before:
        raise RecordError(f"a profile needs the same modules in every batch: {before}. Received: {names}")
    return found.layers
