"""Finds retrieval heads: heads that attend to the tokens that the model copies from far back (Wu et al. 2024).

    score of a head = number of steps that copy the token of the needle to which the head attends most / |needle|

The needle is the part of a long text that the model has to copy, |needle| its number of tokens. A step generates one
token. It counts for a head if the position with the head's largest weight is in the needle and holds this very token.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from headwise.capture.context import watch
from headwise.errors import ArgumentError
from headwise.experiments.readout import find_logits
from headwise.experiments.scores import name_layers
from headwise.experiments.sweeping import strongest
from headwise.records.names import Choice
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Retrieval(Printed):
    """The retrieval scores of all heads.

    Attributes:
        layers: the paths of the layers.
        scores: [L, H], averaged over the examples; above 0.1 a head is a retrieval head in Wu et al. 2024.
        answer: [B, A], the tokens that the model gave, or the given `answer`.
        copied: [B], the share of the needle that is in the answer.
    """

    layers: tuple[str, ...]
    scores: Tensor
    answer: Tensor
    copied: Tensor

    def heads(self, above: float = 0.1) -> list[tuple[str, int]]:
        """Return the heads with a score above `above`, the strongest first: a list of (layer, head)."""
        count = int((self.scores > above).sum())
        return [(layer, head) for _, layer, head, _ in strongest(self.scores, self.layers, count)]

    def __str__(self) -> str:
        lines = [f"retrieval heads: {len(self.heads())} of {self.scores.numel()}; copied {self.copied.mean():.0%}"]
        found = strongest(self.scores, self.layers, 10)
        return "\n".join([*lines, *(f"{x:7.3f}  {layer}, head {head}" for x, layer, head, _ in found)])


def retrieval_scores(
    model: nn.Module,
    ids: Tensor,
    needle: range,
    *,
    answer: Tensor | None = None,
    tokens: int | None = None,
    where: Choice = "*",
) -> Retrieval:
    """Measure how often each head attends most to the token of the needle that the model copies.

    Args:
        model: a causal language model that `headwise.watch` sees, in eval mode, called with ids [B, N] alone.
        ids: a long text with the needle in it, and the question after it, without padding: [B, N].
        needle: the positions of the needle's tokens, the same in all examples: range(40, 52).
        answer: [B, A], an answer that the model reads token by token, whatever it would say (teacher forcing); None =
            the model's own greedy answer.
        tokens: the number of tokens of the model's own answer; None = as many as the needle has.
        where: the layers, as for every edit.

    Wu et al. average over texts of several lengths and over depths of the needle; one call measures one length
    and one depth.

    Raises ArgumentError for a needle outside of the text, or both `answer` and `tokens`.
    """
    is_range = isinstance(needle, range) and len(needle) and needle.step == 1
    if ids.ndim != 2 or not is_range or needle.start < 0 or needle.stop > ids.shape[1]:
        raise ArgumentError(
            f"retrieval_scores: needle must be a range of places in ids [B, N]. Received: needle={needle}, ids="
            f"{list(ids.shape)}"
        )
    if answer is not None and (tokens is not None or answer.ndim != 2 or len(answer) != len(ids)):
        raise ArgumentError(
            f"retrieval_scores: expected an answer [{len(ids)}, A], or tokens=, not both. Received: answer="
            f"{list(answer.shape)}, tokens={tokens}"
        )
    with torch.no_grad():
        if answer is None:
            answer = _greedy(model, ids, len(needle) if tokens is None else tokens)
        whole = torch.cat([ids, answer], 1)
        with watch(model, only=where) as seen:
            model(whole[:, :-1])  # the last token is given, and not read
    rows = range(ids.shape[1] - 1, whole.shape[1] - 1)  # each row gives the next token
    scores = []
    for record in seen:
        at = record.weights(rows=list(rows)).argmax(-1).to(ids.device)  # [B, H, A]
        given = whole.gather(1, at.flatten(1)).view_as(at)
        copies = (given == answer[:, None]) & (at >= needle.start) & (at < needle.stop)
        scores.append((copies.sum(-1) / len(needle)).mean(0))
    found = torch.full((len(scores), max(map(len, scores))), torch.nan)
    for layer, x in enumerate(scores):
        found[layer, : len(x)] = x
    text = ids[:, needle.start : needle.stop]
    copied = (text[:, :, None] == answer[:, None]).any(2).float().mean(1)
    return Retrieval(name_layers(seen), found, answer, copied)


def _greedy(model: nn.Module, ids: Tensor, count: int) -> Tensor:
    """Generate the likeliest next tokens, [B, count], without a cache, so that it works for any model."""
    whole = ids
    for _ in range(count):
        whole = torch.cat([whole, find_logits(model(whole))[:, -1:].argmax(-1)], 1)
    return whole[:, ids.shape[1] :]
