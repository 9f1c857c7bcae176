"""Makes one vector of each text, by the settings of a checkpoint of sentence-transformers.

Texts are sorted by length and read without padding, some thousand tokens in a pass. A thread tokenizes the next texts
while the encoder reads the texts of this pass.
Dimension letters: N texts, S tokens of one text, M elements of a vector.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, DtypeError, brief
from headwise.language import echo
from headwise.models import unpadded
from headwise.models.bert_encoder import BertEncoder
from headwise.models.sentence_head import pooled
from headwise.models.sentence_settings import SentenceSettings, read_settings
from headwise.tables import make_console
from headwise.text.tokenizer import Tokenizer, check_text

DTYPES = ("float32", "bfloat16", "int8")
_AHEAD = 512  # the number of texts that are tokenized at a time

Tell = Callable[[int, int], None]  # (number of texts that have a vector, number of all texts)
_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True)
class Embedded:
    """The vectors of some texts.

    Args:
        vectors: [N, M], float32, on the CPU, in the order of the texts.
        tokens: the number of tokens that were read.
        cut: the indices of the texts that are longer than the limit, of which only a part was read.
    """

    vectors: Tensor
    tokens: int
    cut: list[int]


class SentenceEncoder:
    """Makes vectors of texts, with a BERT and the tokenizer and settings of its checkpoint.

    >>> Bert.from_pretrained("minilm").sentences.dim
    384

    Args:
        bert: a Bert on the CPU.
        tokenizer: the tokenizer. This object sets it to cut long texts, so nothing else should use it.
        settings: the settings of the checkpoint.

    Raises:
        CheckpointError: the modules after the pooling do not fit the encoder.
    """

    def __init__(self, bert: BertEncoder, tokenizer: Tokenizer, settings: SentenceSettings) -> None:
        self.bert, self.settings = bert, settings
        self.later = nn.Sequential(*settings.later).eval()
        self.max_tokens = min(settings.max_tokens or bert.config.max_positions, bert.config.max_positions)
        self.prompts = dict(settings.prompts or {})
        self._backend = tokenizer.backend
        self._backend.enable_truncation(self.max_tokens, direction="left" if settings.cut_left else "right")
        if settings.lowercase:
            _lowercase(self._backend)
        width = bert.config.dim * len(settings.pooling)
        try:
            self.dim: int = self._finish(torch.zeros(1, width)).shape[1]  #: M, the elements of a vector
        except RuntimeError as cause:
            raise CheckpointError(
                f"{settings.folder}: the modules behind the pooling do not take its {width} elements ({cause})"
            ) from cause

    @classmethod
    def of(cls, bert: BertEncoder) -> SentenceEncoder:
        """Make the sentence encoder for a BERT, with the tokenizer and settings in the checkpoint that it came from.

        Raises:
            CheckpointError: the BERT comes from no checkpoint, or the checkpoint has no tokenizer, or settings that
                headwise does not know.
        """
        if bert.folder is None:
            raise CheckpointError(
                "encode needs a tokenizer, and this Bert was made from a config, which has none. "
                "Load a checkpoint: Bert.from_pretrained(folder)"
            )
        return cls(bert, Tokenizer.from_pretrained(bert.folder), read_settings(bert.folder))

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Make the vector of each text, as described in `Bert.encode`."""
        given = [texts] if isinstance(texts, str) else texts
        if not self.settings.stated:
            folder = self.settings.folder
            warnings.warn(f"{folder} has no modules.json: the vectors are means over all tokens", stacklevel=3)
        how: dict[str, Any] = {"batch_tokens": batch_tokens, "dtype": dtype}
        with _bar(progress) as tell:
            begun = time.monotonic()
            found = self.embed(given, self.prompt(prompt_name, prompt), tell=tell, **how)
            seconds = time.monotonic() - begun
        if found.cut:
            many = f"{len(found.cut)} of {len(found.vectors)} texts were cut"
            warnings.warn(f"{many}: they have more than the {self.max_tokens} tokens that are read", stacklevel=3)
        if progress:
            echo(summary(len(found.vectors), found.tokens, seconds), err=True)
        return found.vectors[0] if isinstance(texts, str) else found.vectors

    def embed(
        self,
        texts: Iterable[str],
        prompt: str = "",
        *,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        tell: Tell = lambda done, total: None,
    ) -> Embedded:
        """Make the vectors of texts, and count the tokens that were read. Other arguments: as for `encode`.

        Args:
            prompt: a text that is put before each text.
            tell: a function that is called after each pass, with the number of texts done and of all texts.
        """
        texts = list(texts)
        for place, text in enumerate(texts):
            check_text(text, f"texts[{place}]")
        skipped = self._skipped(prompt)
        read = self._reading(batch_tokens, dtype)
        vectors = torch.empty(len(texts), self.dim)
        tokens, done = 0, 0
        cut: list[int] = []
        tell(0, len(texts))
        by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]), reverse=True)
        slices = [by_length[first : first + _AHEAD] for first in range(0, len(texts), _AHEAD)]
        tokenized = _ahead(lambda places: self._ids([prompt + texts[place] for place in places]), slices)
        was_training = self.bert.training
        self.bert.eval()
        try:
            with torch.inference_mode():
                for places, (ids, is_cut) in zip(slices, tokenized, strict=True):
                    cut += [place for place, each in zip(places, is_cut, strict=True) if each]
                    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
                    for some in unpadded.passes([len(ids[row]) for row in order], batch_tokens or unpadded.TOKENS):
                        rows = [order[row] for row in some]
                        states = read([ids[row] for row in rows])
                        found_NM = torch.stack([pooled(each, self.settings.pooling, skipped) for each in states])
                        vectors[[places[row] for row in rows]] = self._finish(found_NM)
                        tokens += sum(len(ids[row]) for row in rows)
                        tell(done := done + len(rows), len(texts))
        finally:
            self.bert.train(was_training)
        return Embedded(vectors, tokens, sorted(cut))

    def prompt(self, name: str | None = None, text: str | None = None) -> str:
        """Choose the prompt to put before each text: `text`, the prompt called `name`, or the checkpoint's default.

        Raises:
            ArgumentError: both are given, or there is no prompt of this name.
        """
        if name is not None and text is not None:
            raise ArgumentError(f"expected prompt or prompt_name. Received: prompt={text!r}, prompt_name={name!r}")
        if text is not None:
            return text
        if name is None:
            return self.prompts.get(self.settings.default_prompt or "", "")
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise ArgumentError(
                f"prompt_name: expected a prompt of the checkpoint ({known}). Received: prompt_name={name!r}. "
                'Pass its text instead, such as prompt="query: "'
            )
        return self.prompts[name]

    def tokenized(self, text: str, prompt: str = "") -> tuple[list[int], int]:
        """Tokenize one text: return the ids that are read, and the number of all tokens, including those cut off."""
        found = self._backend.encode(prompt + text)
        rest = sum(len(each.ids) - sum(each.special_tokens_mask) for each in found.overflowing)
        return found.ids, len(found.ids) + rest

    def vectors(self, states: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        """Make the vectors [N, M] of N texts from their hidden states, a tensor [S, M] each, and their prompts."""
        pairs = zip(states, prompts, strict=True)
        return self._finish(torch.stack([pooled(x_SM, self.settings.pooling, self._skipped(p)) for x_SM, p in pairs]))

    def _reading(self, batch_tokens: int | None, dtype: str | None) -> Callable[[list[list[int]]], list[Tensor]]:
        """Return the function that computes the hidden states [S, M] of each text of a pass, from the texts' ids."""
        if batch_tokens is not None and (type(batch_tokens) is not int or batch_tokens < 1):
            raise ArgumentError(f"batch_tokens: expected a whole number above 0. Received: batch_tokens={batch_tokens}")
        if dtype is not None and dtype not in DTYPES:
            raise ArgumentError(f"dtype: expected one of {', '.join(DTYPES)}. Received: dtype={dtype!r}")
        weight = self.bert.embeddings.word.weight
        if weight.device.type != "cpu":
            raise DtypeError(f"encode: expected a Bert on the CPU. Received: one on {weight.device}. Use bert.cpu()")
        if dtype is None or getattr(torch, dtype) == weight.dtype:
            how: dict[str, Any] = {}
        else:
            how = {"dtype": dtype}
        if batch_tokens is not None:
            how["tokens"] = batch_tokens
        return functools.partial(unpadded.read, self.bert, **how)

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        """Tokenize texts: return the token ids of each text, and for each text whether it was cut."""
        found = self._backend.encode_batch(texts)
        ids = [each.ids for each in found]
        if empty := [text for text, each in zip(texts, ids, strict=True) if not each]:
            raise ArgumentError(f"texts: expected at least one token in each. Received: {brief(empty[0])}, with none")
        cut = [len(each) == self.max_tokens and bool(own.overflowing) for each, own in zip(ids, found, strict=True)]
        return ids, cut

    def _skipped(self, prompt: str) -> int:
        """Return how many tokens at the beginning of each text the pooling ignores: the prompt's tokens, or 0."""
        if self.settings.include_prompt or not prompt:
            return 0
        encoding = self._backend.encode(prompt)
        count = len(encoding.ids) - encoding.special_tokens_mask[-1]  # without the [SEP] after the prompt
        if count >= self.max_tokens - 1:
            raise ArgumentError(f"prompt: expected fewer than {self.max_tokens - 1} tokens. Received: {count} tokens")
        return count

    def _finish(self, x_NM: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.later(x_NM)[:, : self.settings.width]


def summary(texts: int, tokens: int, seconds: float) -> str:
    """Return a line about speed, such as "512 texts in 4.2 s: 122 texts/s, 9,310 tokens/s"."""
    pace = max(seconds, 1e-9)
    return f"{texts:,} texts in {seconds:,.1f} s: {texts / pace:,.0f} texts/s, {tokens / pace:,.0f} tokens/s"


def _lowercase(backend: Any) -> None:
    from tokenizers import normalizers

    before = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])


def _ahead(work: Callable[[_T], _U], items: Sequence[_T]) -> Iterator[_U]:
    """Yield the result of `work` for each item, in order. A thread computes the next while the caller uses one."""
    if len(items) == 1:  # for a single item no thread is needed
        yield work(items[0])
        return
    with ThreadPoolExecutor(1) as pool:
        begun = (pool.submit(work, item) for item in items)
        later = next(begun, None)
        while later is not None:
            found, later = later.result(), next(begun, None)
            yield found


@contextlib.contextmanager
def _bar(shown: bool) -> Iterator[Tell]:
    """Return a context that shows a progress bar on a terminal. It yields the function to call after each pass."""
    if not shown:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = make_console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
