"""Finds the matches of an image or a text in the gallery (images and texts of the training), which is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch

from headwise.errors import ArgumentError
from headwise.models.image_text import ImageText
from headwise.tasks.matching.candidates import Candidates, encode_images, encode_texts, make_ids
from headwise.tasks.options.match import MatchOptions
from headwise.tasks.rows.gallery import Gallery, Question
from headwise.tasks.text.subwords import Subwords

BEST = 3  # matches per input
Encoded = TypeVar("Encoded")


class Finder:
    """Answers questions with a model in eval mode; keeps the encoded gallery until weights or gallery change."""

    def __init__(self, model: ImageText, subwords: Subwords, options: MatchOptions) -> None:
        self._model, self._subwords, self._options = model, subwords, options
        self._kept: dict[str, tuple[object, object, Any]] = {}

    def answers(self, asked: Sequence[Question], gallery: Gallery) -> list[dict[str, Any]]:
        """Return the answer to each question. For a pair: "match" and "similarity".

        For a single image or text: "best" (names of images, or texts, of the gallery), the probability of each in
        "matches", and the highest of these in "match".
        """
        found: list[dict[str, Any]] = [{} for _ in asked]
        for wants in ("pair", "image", "text"):
            if places := [place for place, each in enumerate(asked) if each.wants == wants]:
                answers = self._answers(wants, [asked[place] for place in places], gallery)
                for place, answer in zip(places, answers, strict=True):
                    found[place] = answer
        return found

    def paired(self, question: Question, gallery: Gallery) -> Question:
        """Complete a question to a pair, by the best image or text of the gallery if one of them is missing."""
        if question.wants == "image":
            name = self.answers([question], gallery)[0]["best"][0]
            return replace(question, name=name, pixels=gallery.images[gallery.names.index(name)])
        if question.wants == "text":
            return replace(question, text=self.answers([question], gallery)[0]["best"][0])
        return question

    def _answers(self, wants: str, asked: Sequence[Question], gallery: Gallery) -> list[dict[str, Any]]:
        """Answer questions of one kind (`Question.wants`): the score of a "pair", or the best "image" or "text"."""
        model, options = self._model, self._options
        ids = partial(make_ids, self._subwords, most=options.max_length)
        encode = partial(encode_texts, model, pad=self._subwords.pad)
        images = (
            self._encoded("images", gallery, lambda: encode_images(model, gallery.images))
            if wants == "image"
            else encode_images(model, [each.pixels for each in asked if each.pixels is not None])
        )
        texts, real = (
            self._encoded("texts", gallery, lambda: encode(ids(gallery.texts)))
            if wants == "text"
            else encode([ids([each.text], read=each.read)[0] for each in asked if each.text is not None])
        )
        found, places = Candidates(model, images, texts, real), torch.arange(len(asked), device=model.log_scale.device)
        if wants == "pair":
            matches, alike = found.match(places, places).sigmoid(), found.cosines(places, places)
            return [{"match": m, "similarity": s} for m, s in zip(matches.tolist(), alike.tolist(), strict=True)]
        best, names = (found.best_images, gallery.names) if wants == "image" else (found.best_texts, gallery.texts)
        order_QN = best(options.rerank, BEST)
        queries = places.repeat_interleave(order_QN.shape[1])
        pairs = (order_QN.flatten(), queries) if wants == "image" else (queries, order_QN.flatten())
        matches = found.match(*pairs).sigmoid().view(order_QN.shape)
        return [
            {"match": shares[0], "best": [names[place] for place in order], "matches": shares}
            for order, shares in zip(order_QN.tolist(), matches.tolist(), strict=True)
        ]

    def _encoded(self, what: str, gallery: Gallery, encode: Callable[[], Encoded]) -> Encoded:
        """Return the encoded images or texts (`what`) of the gallery. They are encoded when they are first needed."""
        model = self._model
        if not getattr(gallery, what):
            raise ArgumentError(
                f"this run folder has no {what} to choose from (gallery=0 in training). Pass an image and a text"
            )
        if any(each._forward_pre_hooks or each._forward_hooks for each in model.modules()):
            return encode()  # hooks, as of `headwise.watch`, must see every call
        # A tensor made in inference mode counts no changes; it is not trained either.
        weights = [(each.data_ptr(), each.is_inference() or each._version) for each in model.parameters()]
        device = model.log_scale.device
        state = weights, device, torch.is_autocast_enabled(device.type)
        kept, before, found = self._kept.get(what, (None, None, None))
        if kept is not gallery or before != state:
            found = encode()
            self._kept[what] = gallery, state, found
        return cast(Encoded, found)
