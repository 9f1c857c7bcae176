"""Runs the model of a live page: a prompt with edits, and the same prompt without edits.

Only one run is made at a time. Recent runs stay in memory, so that undoing a change costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.capture.context import watch
from headwise.edits.context import edit
from headwise.errors import ArgumentError
from headwise.records import Seen
from headwise.text import Tokens
from headwise.viewer.changes import Asked, Change, check_position, check_prompt, make_edits
from headwise.viewer.facts import facts_of
from headwise.viewer.inputs import inputs_of
from headwise.viewer.predictions import compared
from headwise.viewer.shown import Shown

MOST_TOKENS = 1024  # the largest number of tokens in a prompt
KEPT_BYTES = 2**30  # the memory for recent runs, and below, their largest number
KEPT_RUNS = 64


@dataclass(frozen=True)
class LiveModel:
    """A model, with the data that a live page needs.

    `run(ids [1, T])` gives logits [1, T, V] whose row t predicts the token after t; None if the model predicts no
    tokens: then `why` says so on the page.
    """

    module: nn.Module
    encode: Callable[[str], Tokens]
    run: Callable[[Tensor], Tensor | None]
    text_of: Callable[[int], str] = str  # the text of a token
    most_tokens: int | None = None  # None = not known
    why: str = ""


@dataclass(frozen=True)
class Run:
    """One run of a model: its recorded attention, its logits, and the inputs and facts (JSON data) for the page."""

    seen: Seen
    logits: Tensor | None  # [T, V]
    emptied: int
    shown: Shown
    facts: dict[str, Any]
    bytes: int


class Live:
    """Runs a model as live pages request, and gives them the results.

    `layers`: the layers to show, as indices into `seen.layers`; None = all.
    """

    def __init__(self, model: LiveModel, *, title: str, layers: Collection[int] | None = None) -> None:
        self.model, self.title, self.layers = model, title, layers
        self._runs: OrderedDict[tuple[str, tuple[Change, ...]], Run] = OrderedDict()
        self._names = itertools.count()
        self._running, self._keeping = threading.Lock(), threading.Lock()

    def facts(self, asked: Asked) -> dict[str, Any]:
        """Run what the page asks; return the facts (JSON data) of the edited run, and "live" with the predictions.

        Raises:
            ArgumentError: the prompt does not fit the model or has no such position, or the model has no such head.
            EditRefused: an edit selects attention of the model that cannot be edited.
        """
        with self._running:
            plain = self._run(Asked(asked.prompt), None)
            position, count = asked.position, len(plain.seen.tokens[0].ids) if plain.seen.tokens else 0
            if position is not None:
                check_position(position, count, "position")
            edited = self._run(asked, plain) if asked.changes else plain
        found = None
        if plain.logits is not None and edited.logits is not None:
            at = count - 1 if position is None else position
            found = {"position": at, **compared(plain.logits[at], edited.logits[at], self.model.text_of)}
        live = {
            "run": edited.shown.name,
            "prompt": asked.prompt,
            "edits": [each.told() for each in asked.changes],
            "position": position,
            "predictions": found,
            "why": self.model.why,
            "emptied": edited.emptied,
        }
        return {**edited.facts, "live": live}

    def shown(self, name: str) -> Shown:
        """Return the inputs of the run with this name. Raises ArgumentError if the run is not in memory any more."""
        with self._keeping:
            for run in self._runs.values():
                if run.shown.name == name:
                    return run.shown
        raise ArgumentError(f"run: {name} is not kept any more. Reload the page")

    def _run(self, asked: Asked, plain: Run | None) -> Run:
        """Return a run from memory, or make it. `plain`: the run without edits; None if this run has no edits."""
        key = asked.prompt, asked.changes
        with self._keeping:
            if key in self._runs:
                self._runs.move_to_end(key)
                return self._runs[key]
        run = self._new(asked, plain)
        with self._keeping:
            self._runs[key] = run
            size = sum(each.bytes for each in self._runs.values())
            while len(self._runs) > 2 and (len(self._runs) > KEPT_RUNS or size > KEPT_BYTES):
                size -= self._runs.popitem(last=False)[1].bytes
        return run

    def _new(self, asked: Asked, plain: Run | None) -> Run:
        tokens = self._tokens(asked.prompt)
        module = self.model.module
        emptied = 0
        with torch.no_grad(), contextlib.ExitStack() as contexts:
            changed = None
            if plain is not None:
                changed = contexts.enter_context(edit(module, make_edits(asked.changes, plain.seen)))
            seen = contexts.enter_context(watch(module, tokens=[tokens]))
            logits = self.model.run(torch.tensor([tokens.ids]))
            emptied = 0 if changed is None else changed.emptied
        inputs = inputs_of(seen, layers=self.layers)
        facts = facts_of([replace(each, model=self.title) for each in inputs], title=self.title, quick=True)
        row = None if logits is None else logits[0].detach()
        size = sum(each.numel() * each.element_size() for record in seen for each in (record.q, record.k))
        size += 0 if row is None else row.numel() * row.element_size()
        return Run(seen, row, emptied, Shown(str(next(self._names)), inputs), facts, size)

    def _tokens(self, prompt: str) -> Tokens:
        check_prompt(prompt)
        tokens = self.model.encode(prompt)
        most = min(MOST_TOKENS, self.model.most_tokens or MOST_TOKENS)
        if len(tokens.ids) > most:
            raise ArgumentError(
                f"The prompt is too long: expected at most {most:,} tokens. Received: {len(tokens.ids):,}"
            )
        if not tokens.ids:
            raise ArgumentError("The tokenizer gives no tokens for this prompt. Write a word.")
        return tokens
