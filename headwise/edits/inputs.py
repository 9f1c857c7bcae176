"""Remembers the inputs of an edited model and its modules: the token ids, and which tokens are padding."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.capture.generating import Generating
from headwise.capture.sites import clean

_IDS = ("input_ids", "inputs_ids", "ids", "inputs")


class Inputs(threading.local):
    """Remembers the last token ids and the last padding mask that modules got as arguments, for each thread."""

    def __init__(self, model: nn.Module, generating: Generating) -> None:
        self._model, self.generating = model, generating
        self._ids: dict[str, Tensor] = {}  # by the path of the module that got them; the path of the model is ""
        self._real: dict[str, Tensor] = {}  # the model's padding masks [B, N], by argument: 1 = a real token
        parts = {part for name, _ in model.named_modules() for part in name.split(".")}
        self._has_both = any("encoder" in part for part in parts) and any("decoder" in part for part in parts)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context inside which the inputs of modules are remembered."""
        with contextlib.ExitStack() as stack:
            for path, module in self._model.named_modules():
                if not path or "input_ids" in inspect.signature(type(module).forward).parameters:
                    hook = module.register_forward_pre_hook(self._reader(clean(path)), with_kwargs=True)
                    stack.callback(hook.remove)
            yield

    def _reader(self, path: str) -> Callable[..., None]:
        def read(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> None:
            if kwargs is None:  # another thread has just removed the hook: torch no longer knows that it takes kwargs
                return
            found = _find_ids(kwargs, args)
            self._ids.pop(path, None)
            if found is not None:
                self._ids[path] = found
            if not path:
                self._real = {name: x for name, x in kwargs.items() if name.endswith("attention_mask") and _is_rows(x)}

        return read

    def decodes(self, site: str) -> bool:
        """Return whether the layer with the path `site` is in the decoder of an encoder-decoder."""
        return self._has_both and any("decoder" in part for part in site.split("."))

    def ids(self, site: str, length: int) -> Tensor | None:
        """Return the ids [B, `length`] that the nearest module around the layer with the path `site` got, or None."""
        path = site
        while path:
            path = path.rpartition(".")[0]
            found = self._ids.get(path)
            if found is not None and found.shape[1] == length:
                return found
        return None

    def source_ids(self, site: str, length: int) -> Tensor | None:
        """Return the ids of the sequence that cross-attention reads, whose length is `length`; None if unknown.

        They are the ids of a module that does not contain the layer `site` (such as the encoder), else of a module that
        contains the layer, else of the whole model.
        """
        paths = sorted(self._ids, key=lambda path: (not path, site.startswith(f"{path}.")))
        return next((self._ids[path] for path in paths if self._ids[path].shape[1] == length), None)

    def prompt(self, site: str, total: int, batch: int, *, has_cache: bool) -> Tensor | None:
        """Return the ids [B, N] passed to `generate`; None if they are not the prompt that the layer `site` reads."""
        ids = _find_ids(self.generating.inputs)
        if ids is None or self._has_both or batch % len(ids):
            return None
        return ids if has_cache or total == ids.shape[1] else None

    def real(self, site: str, length: int, batch: int) -> Tensor | None:
        """Return which tokens are real: bool [B, length], True = real; None if the model got no padding mask."""
        name = "decoder_attention_mask" if self.decodes(site) else "attention_mask"
        for found in (self.generating.inputs.get(name), self._real.get(name)):
            if (
                isinstance(found, Tensor)
                and found.ndim == 2
                and found.shape[1] == length
                and batch % len(found) == 0
                and bool(found.any(1).all())
            ):
                return found.bool().repeat_interleave(batch // len(found), 0)
        return None

    def count_repeats(self, batch: int) -> int:
        """Return how many rows of a batch belong to one example of the inputs of `generate`, such as its beams."""
        given = [x for x in self.generating.inputs.values() if isinstance(x, Tensor) and x.ndim > 1]
        return max(1, batch // len(given[0])) if given and len(given[0]) and batch % len(given[0]) == 0 else 1


def _find_ids(kwargs: Mapping[str, Any], args: Sequence[Any] = ()) -> Tensor | None:
    for x in (*(kwargs.get(name) for name in _IDS), *args[:1]):
        if _is_rows(x) and not x.is_floating_point():
            found: Tensor = x
            return found
    return None


def _is_rows(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2
