"""Finds the matches of an image or a text in the gallery, which is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from headwise.errors import ArgumentError
from headwise.tasks.matching.candidates import Candidates, encode_images, encode_texts
from headwise.tasks.rows.gallery import Question

if TYPE_CHECKING:
    from headwise.tasks.match import Match

BEST = 3  # matches per input
Encoded = TypeVar("Encoded")


class Finder:
    """Answers the questions of a task; keeps its encoded gallery until the weights or the gallery change."""

    def __init__(self, task: Match) -> None:
        self._task = task
        self._kept: dict[str, tuple[object, object, Any]] = {}

    def answers(self, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """The answer to each question. For a pair "match" and "similarity".

        For one image or text "match", and its "best" names or texts of the gallery with their "matches"."""
        self._task.eval()
        found: list[dict[str, Any]] = [{} for _ in asked]
        for wants in ("pair", "image", "text"):
            if places := [place for place, each in enumerate(asked) if each.wants == wants]:
                answers = self._answers(wants, [asked[place] for place in places])
                for place, answer in zip(places, answers, strict=True):
                    found[place] = answer
        return found

    def paired(self, question: Question) -> Question:
        """A question with the best image or text of the gallery, if it lacks one."""
        gallery = self._task.gallery
        if question.wants == "image":
            name = self.answers([question])[0]["best"][0]
            return replace(question, name=name, pixels=gallery.images[gallery.names.index(name)])
        if question.wants == "text":
            return replace(question, text=self.answers([question])[0]["best"][0])
        return question

    def _answers(self, wants: str, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """The answers to questions of the same kind: scores of pairs, images, or texts."""
        task, model = self._task, self._task.model
        encode = partial(encode_texts, model, pad=task.subwords.pad)
        images = (
            self._gallery("images", lambda: encode_images(model, task.gallery.images))
            if wants == "image"
            else encode_images(model, [each.pixels for each in asked if each.pixels is not None])
        )
        texts, real = (
            self._gallery("texts", lambda: encode(task.ids(task.gallery.texts)))
            if wants == "text"
            else encode([task.ids([each.text], each.read)[0] for each in asked if each.text is not None])
        )
        found, places = Candidates(model, images, texts, real), torch.arange(len(asked), device=task.device)
        if wants == "pair":
            matches, alike = found.match(places, places).sigmoid(), found.cosines(places, places)
            return [{"match": m, "similarity": s} for m, s in zip(matches.tolist(), alike.tolist(), strict=True)]
        best, names = (
            (found.best_images, task.gallery.names) if wants == "image" else (found.best_texts, task.gallery.texts)
        )
        order_QN = best(task.options.rerank, BEST)
        queries = places.repeat_interleave(order_QN.shape[1])
        pairs = (order_QN.flatten(), queries) if wants == "image" else (queries, order_QN.flatten())
        matches = found.match(*pairs).sigmoid().view(order_QN.shape)
        return [
            {"match": shares[0], "best": [names[place] for place in order], "matches": shares}
            for order, shares in zip(order_QN.tolist(), matches.tolist(), strict=True)
        ]

    def _gallery(self, what: str, encode: Callable[[], Encoded]) -> Encoded:
        """The images or the texts of the gallery, encoded when they are first needed."""
        task = self._task
        if not getattr(task.gallery, what):
            raise ArgumentError(
                f"this run folder has no {what} to choose from (gallery=0 in training). Pass an image and a text"
            )
        if any(each._forward_pre_hooks or each._forward_hooks for each in task.model.modules()):
            return encode()  # a watch needs every call
        # A tensor made in inference mode counts no changes; it is not trained either.
        weights = [(each.data_ptr(), each.is_inference() or each._version) for each in task.model.parameters()]
        state = weights, task.device, torch.is_autocast_enabled(task.device.type)
        gallery, before, found = self._kept.get(what, (None, None, None))
        if gallery is not task.gallery or before != state:
            found = encode()
            self._kept[what] = task.gallery, state, found
        return cast(Encoded, found)
