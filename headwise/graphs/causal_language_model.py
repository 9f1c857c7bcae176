"""The graph of a causal language model: "decoder", which is called once for the text and once for each new token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.past import PAST, Past, Reading, make_values, pairs
from headwise.graphs.session import Session, Sessions, replace_methods
from headwise.graphs.tokens import doubled, random_tokens
from headwise.models.cross_entropy import summed_cross_entropy
from headwise.models.language_model import CausalLanguageModel


@torch.no_grad()
def graphs(
    model: CausalLanguageModel, real: Sequence[tuple[Tensor]] = (), *, longest: int | None = None
) -> tuple[Graph, ...]:
    """Return the one graph of a causal language model, "decoder", as a tuple with one element.

        decoder: ids, past_keys_0, past_values_0 … → logits, keys_0, values_0 …

    The graph reads [batch, length] tokens that follow the past (the tokens of earlier calls, of which it gets the keys
    and values of each layer). In the first call the past has no tokens; the returned keys and values are the past of
    the next call. Padding must be on the right, where no token attends to it.

    Args:
        real: batches of ids of real texts, of at least four tokens, as examples in addition to random ids.
        longest: the maximum number of tokens of an example; None = no limit.
    """
    module, config = DecoderGraph(model), model.config
    sizes = (config.num_layers, config.num_heads)
    width = config.dim // config.num_heads
    inputs = (Value("ids", torch.int64, ("batch", "length")), *make_values(PAST, *sizes, "past", width))
    outputs = (
        Value("logits", torch.float32, ("batch", "length", config.vocab_size)),
        *make_values("", *sizes, "present", width),
    )
    batches = [*doubled(real), *random_tokens(config.vocab_size, longest)[:2]]
    empty = [torch.empty(1, config.num_heads, 0, width)] * 2 * config.num_layers
    examples = [step for ids, *_ in batches for step in _steps(module, ids, empty)]
    return (Graph("decoder", module, inputs, outputs, examples, bool(real)),)


def run_on(model: CausalLanguageModel, sessions: Sessions) -> Callable[..., CausalSteps]:
    """Let the graph do the model's computation. Return the function that makes `CausalSteps`, to decode."""
    decoder = sessions["decoder"]

    def make_steps(model: CausalLanguageModel, begun: Sequence[int]) -> CausalSteps:
        return CausalSteps(decoder, begun)

    def forward(
        ids: Tensor, real: Tensor | None = None, *, at: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        # Padding is on the right, where no token attends to it.
        logits = make_steps(model, ()).read(ids)
        logits = logits if at is None else logits[at]
        return logits if labels is None else summed_cross_entropy(logits, labels)

    replace_methods(model, forward=forward)
    return make_steps


class CausalSteps(Reading):
    """Decoding steps by a graph. The first step reads the ids `begun`, the beginning of a text, instead of [BOS]."""

    def __init__(self, decoder: Session, begun: Sequence[int]) -> None:
        super().__init__(decoder, {})
        self._begun = begun

    def __call__(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None] if self.past else torch.tensor([self._begun]))[:, -1]


class DecoderGraph(Computation[CausalLanguageModel]):
    """Returns the logits of the token that follows each token, and the keys and values of all tokens so far."""

    def forward(self, ids: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        past = Past(pairs(given))
        return (self.model(ids, cache=past), *past.present)


def _steps(module: DecoderGraph, ids: Tensor, empty: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Make three example calls: several tokens after a past, all tokens without a past, one token after a past."""
    size = len(ids)
    none = [each.expand(size, -1, -1, -1) for each in empty]
    half = max(ids.shape[1] // 2, 1)
    _, *past = module(ids[:, :half], *none)
    _, *before_last = module(ids[:, :-1], *none)
    return [(ids[:, half:], *past), (ids, *none), (ids[:, -1:], *before_last)]
