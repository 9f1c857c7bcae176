"""`watch`: records the attention of any PyTorch model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture.functions import recogniser_here
from headwise.capture.inside import following
from headwise.capture.keep import Keeping, Offload
from headwise.capture.modules import Modules
from headwise.capture.reading import Reading
from headwise.capture.watcher import Watcher
from headwise.errors import ArgumentError, DtypeError
from headwise.functional import listening
from headwise.records import AttentionRecord, Coverage, Seen
from headwise.records.names import Choice
from headwise.records.statistics.computed import Names
from headwise.registry import find_framework


def watch(
    model: nn.Module,
    *,
    only: Choice | None = None,
    values: bool = False,
    gradients: bool = False,
    offload: Offload = None,
    dtype: torch.dtype | None = None,
    every: int = 1,
    max_bytes: int | Literal["half"] | None = "half",
    tokens: Any = None,
    statistics: Names = (),
    keep: bool = True,
) -> Watch:
    """Record the attention that a model computes inside this context, at the speed of the model's own kernels.

        with headwise.watch(model) as seen:
            model(**inputs)
        seen["encoder.layer.3"].weights(rows=5)      # exact, worked out now
        print(seen.coverage())                       # what was seen, and what was not, and why

    Every computation of softmax(q kᵀ) v becomes an `AttentionRecord`, which keeps q and k, not the weights: memory is
    linear in the length. A generation becomes one record per layer, whose rows are all positions. The model computes
    the same as without `watch`, except that nn.MultiheadAttention and nn.TransformerEncoder leave their fused fast
    path, and that functions compiled by torch.compile run eagerly; `seen.coverage()` says so. Leaving the context takes
    everything out of the model again, also after an exception. `watch` sees the computations of this thread, asyncio
    task or generator, and those of the threads and jobs that it starts.

    Args:
        model: any module, or a Keras model or layer, on any backend (`headwise.keras.watching` says what is seen of
            it). The paths of its modules are the names of the records.
        only: which layers to keep, as in `Seen.only`: numbers in the order in which layers are first seen (-1 = the
            last), paths or parts of them ("layer.3", "encoder"), patterns (`*.self_attn`, `*.layer.[0-3]`), or several
            of these. None = all. With -2 the last two layers seen so far are kept, because the number of layers is not
            known before the model has run. `seen.coverage()` notes choices that match no layer.
        values: keep the values and find the output projections, which norm-based weights need.
        gradients: keep the gradient of each computation's output through a backward pass, and the values.
        offload: "cpu" moves what is kept to the CPU. "disk" keeps it in memory-mapped files without names, in the
            folder for temporary files; a Path does so in that folder. These files disappear with the records.
        dtype: keep queries and keys in this dtype. The weights are then computed from the rounded queries and keys.
        every: keep each n-th forward pass, for training loops.
        max_bytes: how much may be kept; "half" = half of this machine's memory, None = no bound.
        tokens: the names of the positions, as for `Seen.tokens`. None = the patches of the images or the frames of the
            sound that the model read, where its modules tell what these are; otherwise there are no names.
        statistics: statistics that are computed at once for each attention computation, from its own queries and keys:
            names, as for `record.statistics`; with options {"top": {"top": 3}, "entropy": {}}; or "all".
        keep: False = keep only these statistics of a computation, no tensor of size Q × D. `record.statistics()` and
            `record.entropy()` return them; anything that needs the weights raises RecordError. A generation is one
            record per layer, without the pictures ("pooled_mean", "pooled_max"), and after a beam search without
            "received".

    Raises:
        DtypeError, ArgumentError: an argument that makes no sense; the message names it.
        RecordError: inside the context, where the records pass `max_bytes`, or the disk has no room for them.
    """
    keeping = Keeping(only, values, gradients, offload, dtype, every, max_bytes, statistics, keep)
    framework = find_framework(model)
    if framework is not None:
        found: Watch = framework.watch(model, **vars(keeping), tokens=tokens)
        return found
    if not isinstance(model, nn.Module):
        hint = ": pass its .model" if isinstance(getattr(model, "model", None), nn.Module) else ""
        raise DtypeError(f"watch: expected a torch.nn.Module. Received: {type(model).__name__}{hint}")
    return Watch(model, keeping, tokens, _watching)


Watching = Callable[[Any, Keeping], contextlib.AbstractContextManager[Watcher]]


class Watch:
    """The context of `watch`. It may be entered again after it was left, and then begins without records.

    Args:
        model, keeping, tokens: the arguments of `watch`.
        watching: makes a context in which a `Watcher` follows the model and keeps records.
    """

    def __init__(self, model: Any, keeping: Keeping, tokens: Any, watching: Watching) -> None:
        self._model, self._keeping, self._tokens, self._watching = model, keeping, tokens, watching
        self._stack: contextlib.ExitStack | None = None
        self._seen: Seen | None = None
        self._reading: Reading | None = None

    def __enter__(self) -> Seen:
        if self._stack is not None:
            raise ArgumentError("watch: this context is entered already; make another with headwise.watch(model)")
        with contextlib.ExitStack() as stack:
            if isinstance(self._model, nn.Module):
                self._reading = Reading(self._model)
                for remove in self._reading.listen():
                    stack.callback(remove)
            seen = LiveSeen(stack.enter_context(self._watching(self._model, self._keeping)))
            seen.model = type(self._model).__name__
            stack.callback(seen.close)
            self._stack, self._seen = stack.pop_all(), seen
        return seen

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        seen, reading, self._seen, self._reading = self._seen, self._reading, None, None
        if kind is None and seen is not None and reading is not None:
            reading.name(seen)
        if kind is None and self._tokens is not None and seen is not None:
            seen.tokens = self._tokens


@contextlib.contextmanager
def _watching(model: nn.Module, keeping: Keeping) -> Iterator[Watcher]:
    """Return a context in which a `Watcher` follows a torch model and keeps records."""
    watcher = Watcher(type(model).__name__, Modules(model), keeping)

    def told(call: AttentionCall, out: Tensor, used: Any = None) -> None:
        recogniser = recogniser_here()
        if recogniser is not None:
            recogniser.told(watcher, call, out, used)

    with following(watcher), listening(told):
        yield watcher


class LiveSeen(Seen):
    """The records of a watched model so far, while the context of `watch` is open."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher: Watcher | None = watcher

    @property
    def records(self) -> list[AttentionRecord]:
        return self._records if self._watcher is None else self._watcher.records()

    def coverage(self) -> Coverage:
        return self._coverage if self._watcher is None else self._watcher.coverage()

    def close(self) -> None:
        """Release the model when the context ends; keep the records."""
        self._records, self._coverage, self._watcher = self.records, self.coverage(), None
