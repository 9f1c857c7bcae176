"""Reports the attention of Hugging Face models, whose attention functions come from a registry, and their `generate`.

Most functions of the registry call torch functions, which are seen anyway. For a function that does not (flash
attention, a kernel from the hub), an attention call is made from its arguments (registered.py), and kept if it gives
the same output. transformers is never imported here: a Hugging Face model has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from headwise.capture.changes import Undo, changed, replaced
from headwise.capture.follower import FOLLOWERS, Follower
from headwise.capture.functions import recogniser_here
from headwise.errors import EditRefused
from headwise.scope import alone


@contextlib.contextmanager
def seen_through(model: nn.Module) -> Iterator[None]:
    """Return a context in which transformers' attention functions and `model.generate` report to the followers.

    A follower is an object that watches or edits a model. The context has no effect on models that are not from
    transformers.
    """
    transformers = sys.modules.get("transformers")
    base = getattr(transformers, "PreTrainedModel", None)
    theirs = [] if base is None else [module for module in model.modules() if isinstance(module, base)]
    with contextlib.ExitStack() as stack:
        if theirs:
            stack.enter_context(changed("transformers' registry", _report_registry))
        for module in theirs:
            for name, reporting in (("generate", _generating), ("generate_batch", _batching)):
                if callable(getattr(module, name, None)):
                    make = functools.partial(reporting, module)
                    stack.enter_context(changed((name, id(module)), functools.partial(replaced, module, name, make)))
        yield


def _report_registry() -> Undo:
    mapping: dict[str, Callable[..., Any]] = sys.modules["transformers"].AttentionInterface._global_mapping
    reporting = {name: (each, _reporting(name, each)) for name, each in mapping.items()}
    mapping.update({name: new for name, (_, new) in reporting.items()})

    def undo() -> None:
        for name, (original, new) in reporting.items():
            if mapping.get(name) is new:  # functions that were registered meanwhile stay
                mapping[name] = original

    return undo


def _reporting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def heard(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        recogniser = recogniser_here()
        if recogniser is None or not FOLLOWERS.here():
            return function(module, query, key, value, *args, **kwargs)
        before = recogniser.heard
        recogniser.sinks, recogniser.asked = kwargs.get("s_aux"), query.shape
        try:
            result = function(module, query, key, value, *args, **kwargs)
        finally:
            recogniser.sinks, recogniser.asked = None, None
        if recogniser.heard != before:
            return result
        return recogniser.opaque(name, result, module, query, key, value, *args, **kwargs)

    return heard


def _find_followers(model: nn.Module) -> list[Follower]:
    return [follower for follower in FOLLOWERS.here() if follower.parts.has(model)]


# The arguments of `generate` with which a step reads several tokens (drafts), and rejects some of them.
_DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


def _generating(model: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `model.generate` so that it reports when it runs, which beams it returned and which tokens it rejected."""

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        followers = _find_followers(model)
        config = kwargs.get("generation_config") or getattr(model, "generation_config", None)

        def asked(name: str) -> Any:
            given = kwargs.get(name)
            return getattr(config, name, None) if given is None else given

        inputs = {**kwargs, **dict(zip(("inputs",), args, strict=False))}
        with contextlib.ExitStack() as stack:
            outermost = [each for each in followers if stack.enter_context(each.generating.running(inputs))]
            if (assistant := kwargs.get("assistant_model")) is not None:
                stack.enter_context(_drafting(assistant, model, followers))
            beams, drafts = asked("num_beams") or 1, any(asked(name) for name in _DRAFTS)
            if not outermost or (beams == 1 and not drafts):
                return original(*args, **kwargs)
            out = original(*args, **{**kwargs, "return_dict_in_generate": True})
            chosen, cache, examples = getattr(out, "beam_indices", None), getattr(out, "past_key_values", None), 0
            if chosen is not None:
                examples = len(chosen) // (asked("num_return_sequences") or 1)
            length = None if cache is None or chosen is not None else int(cache.get_seq_length())
            for each in outermost:
                each.generated(chosen, examples * beams, length)
            return out if asked("return_dict_in_generate") else out.sequences

    return generate


@contextlib.contextmanager
def _drafting(assistant: nn.Module, model: nn.Module, followers: list[Follower]) -> Iterator[None]:
    """Return a context in which attention inside the assistant, a second model, is not reported as the model's own."""
    own = set(map(id, model.modules()))

    def deeper(by: int) -> None:
        for each in followers:
            each.generating.depth += by

    with contextlib.ExitStack() as stack:
        for module in assistant.modules():
            if id(module) not in own and hasattr(module, "config"):  # a model, or its encoder
                stack.callback(module.register_forward_pre_hook(lambda *_: deeper(1)).remove)
                stack.callback(module.register_forward_hook(lambda *_: deeper(-1), always_call=True).remove)
        yield


def _batching(model: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `model.generate_batch` so that it reports that continuous batching cannot be followed."""

    @functools.wraps(original)
    def generate_batch(*args: Any, **kwargs: Any) -> Any:
        followers = _find_followers(model)
        reason = "it packs parts of several texts into one row, with a cache in pages. Call generate for each text"
        if any(each.changes for each in followers):
            raise EditRefused(f"generate_batch cannot be edited: {reason}")
        for each in followers:
            each.note(f"generate_batch was not seen: {reason}")
        return alone(original)(*args, **kwargs)

    return generate_batch
