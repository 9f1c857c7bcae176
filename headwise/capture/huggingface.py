"""Hugging Face models: attention functions that are chosen by name from a registry, and `generate`.

Most functions of the registry call torch functions, which are seen anyway. One that does not (flash attention, a kernel
from the hub) is read from its arguments, and kept if these explain its output. transformers is never imported here: a
Hugging Face model has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.call import make_call
from headwise.errors import RecordError
from headwise.masks import Mask

if TYPE_CHECKING:
    from headwise.capture.recogniser import Recogniser
    from headwise.capture.watcher import Watcher


@contextlib.contextmanager
def seen_through(model: nn.Module, watcher: Watcher, recogniser: Recogniser) -> Iterator[None]:
    """Inside this context the registry's functions and `model.generate` report to the watch. Else no effect."""
    transformers = sys.modules.get("transformers")
    base = getattr(transformers, "PreTrainedModel", None)
    theirs = [] if base is None else [module for module in model.modules() if isinstance(module, base)]
    if not theirs:
        yield
        return
    with _REGISTRY.heard_by(recogniser), contextlib.ExitStack() as stack:
        for module in theirs:
            for name, context in (("generate", _generating), ("generate_batch", _batching_noted)):
                if callable(getattr(module, name, None)):
                    stack.enter_context(context(module, watcher))
        yield


class _Registry:
    """The registry, with every function replaced while anybody listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[tuple[int, Recogniser], ...] = ()  # (the thread that it listens to, the listener)
        self._replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # name -> (original, replacement)

    @contextlib.contextmanager
    def heard_by(self, recogniser: Recogniser) -> Iterator[None]:
        """Inside this context the registry's functions report to `recogniser`, if this thread calls them."""
        mapping: dict[str, Callable[..., Any]] = sys.modules["transformers"].AttentionInterface._global_mapping
        listener = threading.get_ident(), recogniser
        with self._lock:
            if not self._listeners:
                self._replaced = {name: (each, self._reporting(name, each)) for name, each in mapping.items()}
                mapping.update({name: replacement for name, (_, replacement) in self._replaced.items()})
            self._listeners += (listener,)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)
                if not self._listeners:
                    for name, (original, replacement) in self._replaced.items():
                        if mapping.get(name) is replacement:  # functions that were registered meanwhile stay
                            mapping[name] = original

    def _reporting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def heard(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            listeners = [each for thread, each in self._listeners if thread == threading.get_ident()]
            before = [each.heard for each in listeners]
            for each in listeners:
                each.sinks, each.asked = kwargs.get("s_aux"), query.shape
            try:
                result = function(module, query, key, value, *args, **kwargs)
            finally:
                for each in listeners:
                    each.sinks, each.asked = None, None
            new = result
            # What an edit computes anew it tells the others.
            for each, count in sorted(zip(listeners, before, strict=True), key=lambda pair: not pair[0].changes):
                if each.heard == count:
                    each.opaque(name, module, query, key, value, result, *args, **kwargs)
                    new = each.edited(new)
            return new

        return heard


_REGISTRY = _Registry()


def read(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> Any:
    """The call of a registry function, from its arguments. RecordError for what cannot be read."""
    if dropout:
        raise RecordError("with dropout there is nothing to compare the record with. Call model.eval()")
    q_len, k_len = query.shape[2], key.shape[2]
    mask: Mask | None = None
    bias = None
    if attention_mask is not None and attention_mask.ndim == 4:
        dense = attention_mask[..., :k_len].expand(*attention_mask.shape[:2], q_len, k_len)
        if dense.dtype == torch.bool:
            mask = masks.recognise(dense)
        else:
            mask, bias = masks.recognise_additive(dense)
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        parts: list[Mask] = [masks.causal()] if causal and q_len > 1 else []
        if sliding_window is not None and sliding_window < k_len:
            parts.append(masks.window(sliding_window - 1, 0 if causal else sliding_window - 1))
        if attention_mask is not None:
            parts.append(masks.padding(attention_mask[:, -k_len:].bool()))
        for part in parts:
            mask = part if mask is None else mask & part
    return make_call(query, key, value, mask=mask, bias=bias, scale=scaling, softcap=softcap, sinks=s_aux)


@contextlib.contextmanager
def _generating(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Inside this context `model.generate` reports when it runs, which beams it returned and what it rejected."""
    original: Callable[..., Any] = model.generate  # type: ignore[assignment]

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or getattr(model, "generation_config", None)

        def asked(name: str) -> Any:
            given = kwargs.get(name)
            return getattr(config, name, None) if given is None else given

        if not watcher.is_watching():
            return original(*args, **kwargs)
        inputs = {**kwargs, **dict(zip(("inputs",), args, strict=False))}
        with watcher.generating.running(inputs) as outermost, contextlib.ExitStack() as stack:
            if (assistant := kwargs.get("assistant_model")) is not None:
                stack.enter_context(_drafting(assistant, model, watcher))
            beams, drafts = asked("num_beams") or 1, any(asked(name) for name in _DRAFTS)
            if not outermost or (beams == 1 and not drafts):
                return original(*args, **kwargs)
            out = original(*args, **{**kwargs, "return_dict_in_generate": True})
            if getattr(out, "beam_indices", None) is not None:
                examples = len(out.beam_indices) // (asked("num_return_sequences") or 1)
                watcher.choose_beams(out.beam_indices, examples * beams)
            elif getattr(out, "past_key_values", None) is not None:
                watcher.end_at(int(out.past_key_values.get_seq_length()))
            return out if asked("return_dict_in_generate") else out.sequences

    with _replaced(model, "generate", generate):
        yield


@contextlib.contextmanager
def _drafting(assistant: nn.Module, model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Inside this context what an assistant computes is no attention of the model."""
    own = set(map(id, model.modules()))

    def enter(*_: Any) -> None:
        watcher.generating.depth += 1

    def leave(*_: Any) -> None:
        watcher.generating.depth -= 1

    with contextlib.ExitStack() as stack:
        for module in assistant.modules():
            if id(module) not in own and hasattr(module, "config"):  # a model, or its encoder
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


# The arguments of `generate` by which steps read several tokens, and reject some.
_DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


@contextlib.contextmanager
def _batching_noted(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Inside this context it is noted that continuous batching cannot be seen."""
    original: Callable[..., Any] = model.generate_batch  # type: ignore[assignment]

    @functools.wraps(original)
    def generate_batch(*args: Any, **kwargs: Any) -> Any:
        watcher.note(
            "generate_batch was not seen: it runs in a thread of its own, and packs parts of several texts into one "
            "row, with a cache in pages. Call generate for each text"
        )
        return original(*args, **kwargs)

    with _replaced(model, "generate_batch", generate_batch):
        yield


@contextlib.contextmanager
def _replaced(model: nn.Module, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Inside this context a method of the model is another one."""
    had = model.__dict__.get(name)
    model.__dict__[name] = method
    try:
        yield
    finally:
        if had is None:
            model.__dict__.pop(name, None)
        else:
            model.__dict__[name] = had
