"""`monitor`: a few numbers for each head while a model trains, every n steps.

The forward passes of every n-th step run under `headwise.watch`. The means are computed from the records at once,
before the backward pass, and the records are released. The other steps run as if there were no monitor.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from headwise.capture.context import watch
from headwise.capture.head_means import Means, Sums, gradient_norm
from headwise.capture.inside import running_eagerly
from headwise.capture.loggers import Metrics, make_logger
from headwise.errors import ArgumentError, DtypeError, HeadwiseError
from headwise.records import CallSite, Coverage
from headwise.records.coverage import Status
from headwise.records.names import Choice
from headwise.scope import Opened, Scope

_MONITORS: Scope[Monitor] = Scope()

Dead = dict[int, Literal["dormant", "uniform"]]  # head -> why


class Monitor:
    """Log numbers about the heads of a model while it trains: entropy, first visible key, dead heads, gradient norm.

        with headwise.capture.monitor(model, writer, every=100) as watching:
            for batch in loader:
                loss = model(batch)
                loss.backward()
                watching.step()          # once for every optimizer.step(), before it
                optimizer.step()
                optimizer.zero_grad()

    Every n-th `step()` logs and returns these numbers; the other steps return an empty dict. Means are over the
    examples and the queries that attend to anything, in all forward passes since the last step (gradient accumulation):

        attention/layers.0.attn/entropy/head_3             -Σ A log A, in nats (Zhai et al. 2023: training becomes
                                                           unstable where it collapses)
        attention/layers.0.attn/entropy_normalised/head_3  entropy / log(keys that the query may attend to): 0 = one
                                                           key, 1 = all equally; of queries with more than one key
        attention/layers.0.attn/first_visible/head_3       the weight on the first visible key (Xiao et al. 2024)
        attention/layers.0.attn/learned_sink/head_3        the weight on the learned sink, if there is one (gpt-oss)
        attention/layers.0.attn/dead_heads                 how many of the layer's heads are dead
        attention/dead_heads                               how many of all heads are dead
        attention/gradient_norm                            the L2 norm of all gradients as one vector, as
                                                           torch.nn.utils.clip_grad_norm_ returns it

    A head is dead if it is *dormant*, with a mean weight of `dormant` or more on the first key and the learned sink
    (Guo et al. 2024, arXiv:2410.13835; Sandoval-Segura et al. 2025, arXiv:2504.03889), or *uniform*, with a normalised
    entropy of `uniform` or more: it averages all values, and the gradients of its queries and keys vanish (Noci et al.
    2022, arXiv:2206.03126). Heads with small random weights start as uniform. A low entropy alone does not make a head
    dead: a head that finds the previous token has a low entropy too.

    Forward passes in eval mode or without gradients do not count, so the model may be validated in between. The weights
    are taken before dropout. `gradient_norm` is computed from the gradients at `step()`: with a gradient scaler, call
    `scaler.unscale_(optimizer)` before `step()`, and clip gradients after it. If parameters are distributed tensors
    (FSDP2), it is the norm of the whole gradients, not of one process's shards; every process must call `step()`.

    Args:
        model: any module that `headwise.watch` can see. Compiled code runs eagerly in the steps that are logged.
        log: where the numbers go: a TensorBoard `SummaryWriter` (which also gets histograms of each layer's heads), an
            object with `log_metrics(metrics, step)` such as a Lightning logger, or a function of (metrics, step). None
            = the numbers are only returned by `step()`.
        every: log the steps 0, n, 2n, ….
        only: which layers, as in `headwise.watch`. None = all.
        first_step: the number of the first step, for a resumed training.
        prefix: the beginning of the names of all numbers.
        uniform, dormant: a head with this value or more is dead.

    Raises:
        ArgumentError, DtypeError: an argument that is out of range or of the wrong kind; the message names it.
    """

    def __init__(
        self,
        model: nn.Module,
        log: Any = None,
        *,
        every: int = 100,
        only: Choice | None = None,
        first_step: int = 0,
        prefix: str = "attention",
        uniform: float = 0.99,
        dormant: float = 0.9,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise DtypeError(f"monitor: model must be a torch.nn.Module. Received: {type(model).__name__}")
        for name, number, least in (("every", every, 1), ("first_step", first_step, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ArgumentError(f"monitor: {name} must be an int of at least {least}. Received: {name}={number!r}")
        for name, share in (("uniform", uniform), ("dormant", dormant)):
            if not 0.0 < share <= 1.0:
                raise ArgumentError(f"monitor: {name} must be above 0 and at most 1. Received: {name}={share!r}")
        self.dead: dict[str, Dead] = {}  #: layer -> head -> why, in the last log
        self.step_number = first_step  #: the number of the current step
        self._model, self._only, self._every, self._prefix = model, only, every, prefix
        self._uniform, self._dormant = uniform, dormant
        self._log = make_logger(log)
        self.logs = log is not None  #: whether the monitor has a `log` of its own
        self._sums: dict[str, Sums] = {}
        self._calls: Counter[tuple[str, Status, str]] = Counter()  # (name, status, how) of a call site -> calls
        self._notes, self._nothing, self._coverage = dict[str, None](), "", Coverage()
        self._hooks = contextlib.ExitStack()
        self._forward: _Forward | None = None
        self._opened: Opened[Monitor] | None = None
        self._warned = set[str]()

    # The training loop.

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to watch the code that runs here from now on, as in `watch`. ArgumentError if it is already running."""
        if self._opened is not None:
            raise ArgumentError("monitor: it is already running. Make another with headwise.capture.monitor(model)")
        self._opened = _MONITORS.open(self)
        self._opened.__enter__()
        self._arm()

    def stop(self) -> None:
        """Remove everything that was added to the model."""
        if self._opened is not None:
            self._opened.__exit__()
        self._opened = None
        self._disarm()

    def step(self) -> Metrics:
        """End a training step: call it after `loss.backward()`, before `optimizer.step()`. Logs every n-th step.

        Returns the logged numbers by name; {} for the other steps. ArgumentError if the monitor is not running.
        """
        if self._opened is None:
            raise ArgumentError("monitor: step() was called outside the context. Use `with monitor(...) as watching:`")
        number, metrics = self.step_number, Metrics()
        if number % self._every == 0:
            self._disarm()
            sites = tuple(CallSite(name, status, n, how) for (name, status, how), n in self._calls.items())
            self._coverage = Coverage(sites, tuple(self._notes))
            heads = {layer: sums.means() for layer, sums in self._sums.items()}
            metrics = self._metrics(heads)
            if metrics:
                self._log(metrics, {f"{self._prefix}/{layer}": means for layer, means in heads.items()}, number)
        self.step_number += 1
        self._arm()
        return metrics

    def coverage(self) -> Coverage:
        """Return what was seen in the last logged step, what was not, and why, as `coverage` of `headwise.watch`."""
        return self._coverage

    def lightning(self) -> Any:
        """Return a callback: `Trainer(callbacks=[headwise.capture.monitor(module, every=100).lightning()])`.

        Without a `log` of its own the monitor logs to the trainer's loggers. Steps are the optimizer's steps, and the
        gradients are the ones that Lightning has unscaled. ArgumentError if Lightning is not installed.
        """
        return _lightning_callback(self)

    # Watching the forward passes of one step.

    def _arm(self) -> None:
        """If this step will be logged, set hooks that watch every forward pass, from the outermost module called."""
        if self.step_number % self._every:
            return
        self._sums, self._calls, self._notes, self._nothing = {}, Counter(), {}, ""
        self._hooks.enter_context(running_eagerly())
        for module in self._model.modules():
            self._hooks.enter_context(module.register_forward_pre_hook(_Hook(self._before)))
            self._hooks.enter_context(module.register_forward_hook(_Hook(self._after), always_call=True))

    def _disarm(self) -> None:
        forward, self._forward = self._forward, None
        if forward is not None:  # the last pass was interrupted
            forward.watched.close()
        self._hooks.close()

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or self not in _MONITORS.here():
            return
        if self._forward is not None:
            self._forward.depth += module is self._forward.module
            return
        if not module.training or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        before = len(module._forward_pre_hooks)
        watched = contextlib.ExitStack()
        seen = watched.enter_context(watch(self._model, only=self._only, max_bytes=None))
        self._forward = _Forward(module, watched, seen, sys.exc_info()[1])
        # torch listed the hooks of this very call before the watch added its own.
        for hook in list(module._forward_pre_hooks.values())[before:]:
            hook(module, arguments)

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        forward = self._forward
        if torch.compiler.is_compiling() or self not in _MONITORS.here():
            return
        if forward is None or module is not forward.module:
            return
        forward.depth -= 1
        if forward.depth:
            return
        self._forward = None
        forward.watched.close()
        if sys.exc_info()[1] is forward.error:  # else the pass failed, and the loop may try again
            self._take(forward.seen)

    def _take(self, seen: Any) -> None:
        """Add the statistics of one forward pass, from its records `seen`, to the sums of this training step."""
        coverage = seen.coverage()
        for site in coverage:
            self._calls[site.name, site.status, site.how] += site.calls
        for record in seen:
            name = record.site.name
            try:
                found = Sums.of(record)
            except HeadwiseError as error:  # a tensor was changed in place since
                self._calls[name, "refused", str(error)] += 1
                continue
            self._sums[name] = self._sums[name] + found if name in self._sums else found
        if coverage.sites:
            self._notes.update(dict.fromkeys(coverage.notes))
        else:  # only a part of the model was called
            self._nothing = ". ".join(coverage.notes)

    # The numbers.

    def _metrics(self, heads: dict[str, Means]) -> Metrics:
        metrics = Metrics()
        norm = gradient_norm(self._model)
        if norm is not None:
            metrics[f"{self._prefix}/gradient_norm"] = norm
        else:
            self._warn("there are no gradients. Call step() after backward() and before zero_grad()")
        if not self._sums:
            why = self._nothing or "there was no forward pass in train mode and with gradients since the last step"
            self._warn(f"no head was logged: {why}")
        for site in (*self._coverage.missed, *self._coverage.refused):
            self._warn(f"{site.name} was {site.status}: {site.how}")
        self.dead = {layer: dead for layer, means in heads.items() if (dead := self._dead(means))}
        if heads:
            metrics[f"{self._prefix}/dead_heads"] = float(sum(map(len, self.dead.values())))
        for layer, means in heads.items():
            metrics[f"{self._prefix}/{layer}/dead_heads"] = float(len(self.dead.get(layer, ())))
            for name, values in means.items():
                for head, value in enumerate(values.tolist()):
                    metrics[f"{self._prefix}/{layer}/{name}/head_{head}"] = value
        return metrics

    def _dead(self, means: Means) -> Dead:
        on_sinks = means["first_visible"] + means.get("learned_sink", 0.0)
        found: Dead = {}
        for head, (entropy, share) in enumerate(zip(means["entropy_normalised"], on_sinks, strict=True)):
            if share >= self._dormant:
                found[head] = "dormant"
            elif entropy >= self._uniform:
                found[head] = "uniform"
        return found

    def _warn(self, message: str) -> None:
        """Warn once per monitor: a long training should neither fail nor fill its log because of a warning."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"headwise.capture.monitor, step {self.step_number}: {message}", stacklevel=4)


monitor = Monitor  # the context is written in lower case, as `watch` is


def _lightning_callback(watching: Monitor) -> Any:
    """Make a Lightning callback for a monitor. (Lightning accepts only subclasses of its own class.)"""

    class AttentionMonitor(_lightning().Callback):  # type: ignore[misc]
        """Starts, steps and stops a monitor together with the training."""

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            watching.step_number = trainer.global_step
            watching.start()

        def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
            step = watching.step_number
            metrics = watching.step()
            if metrics and not watching.logs:
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step=step)

        def on_train_end(self, *_: Any) -> None:
            watching.stop()

        on_exception = on_train_end

    return AttentionMonitor()


def _lightning() -> Any:
    """Return the package lightning.pytorch or pytorch_lightning: the imported one, or else the installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ArgumentError(
        "monitor: Lightning is not installed. Run pip install lightning, or call step() in your own loop"
    )


class _Hook:
    """A hook that does nothing in a copy of the model, which is not watched."""

    def __init__(self, function: Callable[..., None] = lambda *_: None) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


@dataclass
class _Forward:
    """A forward pass that is being watched and has not ended."""

    module: nn.Module  # the outermost module that was called
    watched: contextlib.ExitStack
    seen: Any
    error: BaseException | None  # the exception that was being handled when the pass began
    depth: int = 1
