"""`profile`: reads a corpus once, window by window, and keeps sums, sketches and a few examples of every head."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError, DtypeError, RecordError, brief
from headwise.profiles.block import block_scores
from headwise.profiles.examples import KEPT, Window
from headwise.profiles.measuring import measured
from headwise.profiles.memory import give_back
from headwise.profiles.profile import Profile
from headwise.profiles.reading import Read, Reading
from headwise.profiles.resuming import digest_model, digest_run, partial, resumed
from headwise.profiles.sums import LayerSums
from headwise.tasks.bulk.running import Engine

Tell = Callable[[Profile], object]
Load = Callable[[], Pretrained]


def profile(
    model: Pretrained,
    texts: Iterable[str],
    *,
    name: str | None = None,
    length: int | None = None,
    batch: int = 2048,
    kept: int = KEPT,
    max_tokens: int | None = None,
    only: Sequence[int | str] | None = None,
    out: Path | None = None,
    every: float = 10.0,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
    load: Load | None = None,
    tell: Tell = lambda so_far: None,
) -> Profile:
    """Profile what every head of a model does over a corpus. Memory does not depend on the size of the corpus.

    Args:
        model: the result of `headwise.capture.pretrained.load_pretrained`, or `Pretrained(name, model,
            tokenizer.encode)` of a model that takes ids and `attention_mask=`.
        texts: any iterable of strings, read once; `headwise.profiles.corpus` has files and data sets. A text of more
            than 50,000 characters counts as several texts.
        name: the name of the corpus. Default: the name of a `Corpus`, or "texts".
        length: a longer text is cut into windows of at most this many tokens, special tokens included. Default: 128, or
            what the model can read.
        batch: the number of tokens that the model reads at once, with padding.
        kept: the number of examples for each head.
        max_tokens: stop after the first pool of batches that reaches this number of tokens. Default: the whole corpus.
        only: the attention modules, as for `headwise.watch(only=)`. Default: all.
        out: the file to write. Until it is complete, checkpoints are written beside it (`partial(out)`), from which the
            same call goes on after an interruption: with the same result, to the last bit on one thread.
        every: the seconds between checkpoints.
        engine: "ray": the model reads on Ray workers. This process sums their results, in the order of the corpus,
            so the result is the same to the last bit, if they use equally many threads.
        workers: with Ray: the number of processes, each of which holds the model.
        address: with Ray: the address of a cluster, as for `ray_engine.connected`.
        load: with Ray: the function that a worker calls for the model, such as `partial(load_pretrained, name)`.
            Default: the model is sent to each worker.
        tell: called with the profile so far after each batch.

    Returns:
        The complete profile.

    Raises:
        ArgumentError: an argument is out of range, there is no text with a token in the corpus, or the checkpoint
            is of another model, corpus or options. With Ray: Ray is not installed or does not respond, the corpus
            cannot be sent, or a worker loads other weights, or fails repeatedly.
        RecordError: no self-attention was recorded, or other modules than in earlier batches.
        FileError: the checkpoint is damaged or cannot be written.
    """
    longest = model.max_length
    if isinstance(texts, str):
        raise DtypeError(f"texts: expected several texts, such as [text]. Received: one text, {brief(texts)}")
    if length is None:
        length = min(128, longest or 128)
    if length < 4 or (longest is not None and length > longest):
        raise ArgumentError(f"length: expected 4 to {longest or 'any number'} tokens. Received: length={length}")
    for given, value in (("batch", batch), ("kept", kept), ("max_tokens", 1 if max_tokens is None else max_tokens)):
        if value < 1:
            raise ArgumentError(f"{given}: expected at least 1. Received: {given}={value}")
    options = {"length": length, "batch": batch, "kept": kept, "only": None if only is None else list(only)}
    options["max_tokens"] = max_tokens
    found = Profile(
        model.name, name or str(getattr(texts, "name", "texts")), options, model_digest=digest_model(model.model)
    )
    checkpoint = None if out is None else partial(out)
    if checkpoint is not None:
        found.run_digest = digest_run(model)
        if checkpoint.exists():
            found = resumed(checkpoint, found)
    before = (found.texts, found.corpus_digest, checkpoint) if found.texts else ()
    reading = Reading(texts, model.encode, length, batch, *before)
    if not found.layers:
        found.block = block_scores(model, only)
    if engine == "ray":
        from headwise.profiles.on_ray import measured_on_ray

        batches = measured_on_ray(reading, found, load or (lambda: model), workers, address)
    else:
        batches = _measured_here(reading, found, model)
    written = time.monotonic()
    with contextlib.closing(batches):
        for read, layers in batches:
            found.texts = read.texts
            if read.windows:
                _add(found, read.windows, layers)
                tell(found)
            if not read.digest:
                continue
            give_back()
            found.corpus_digest = read.digest
            if max_tokens is not None and found.tokens >= max_tokens:
                break
            if checkpoint is not None and time.monotonic() - written >= every:
                found.save(checkpoint)
                written = time.monotonic()
    if not found.layers:
        raise ArgumentError(f"{found.corpus}: there is no text in it: expected at least one word")
    found.complete = True
    if out is not None:
        found.save(out)
        partial(out).unlink(missing_ok=True)
    return found


def _measured_here(reading: Reading, found: Profile, model: Pretrained) -> Generator[tuple[Read, list[LayerSums]]]:
    """Let the model read each batch in this process; yield the batch with the sums of every layer over it."""
    only, kept, length = (found.options[name] for name in ("only", "kept", "length"))
    for read in reading:
        yield read, measured(model, read.windows, only, kept, length) if read.windows else []


def _add(found: Profile, windows: Sequence[Window], layers: Sequence[LayerSums]) -> None:
    """Add a batch to the profile: the sums of every head, the number of windows and tokens, and names of new tokens."""
    if not found.layers:
        found.layers = [LayerSums(more.name, more.heads, more.kept) for more in layers]
    expected, names = ([sums.name for sums in some] for some in (found.layers, layers))
    if names != expected:
        raise RecordError(f"a profile needs the same modules in every batch: {expected}. Received: {names}")
    for sums, more in zip(found.layers, layers, strict=True):
        sums.merge(more)
    found.windows += len(windows)
    for each in windows:
        found.tokens += len(each.tokens.ids)
        for code, label in zip(each.tokens.ids, each.tokens.labels, strict=True):
            before = found.names.setdefault(code, label)
            if label != before and label.lower() == before.lower():  # a vocabulary without capitals
                found.names[code] = label.lower()
