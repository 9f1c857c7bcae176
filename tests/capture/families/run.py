"""Runs the families: each in a process of its own, so that a crash, a hang or a large model ends only that one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from tests.capture.families.compare import Result, compare
from tests.capture.families.configs import SIZES
from tests.capture.families.inputs import Inputs, Padding, candidates, expected_places, padded, ready
from tests.capture.families.making import fresh
from tests.capture.families.models import build, seed

IMPLEMENTATIONS = ("sdpa", "eager")
PADDINGS: tuple[Padding, ...] = ("none", "left", "right")
VARIANTS = tuple((how, padding) for how in IMPLEMENTATIONS for padding in PADDINGS)
SECONDS, BYTES = 60, 6 * 2**30
R = TypeVar("R")
PRELOADED = (
    *("transformers.modeling_utils", "transformers.generation", "transformers.masking_utils", "headwise.capture"),
    *("transformers.models.llama.modeling_llama", "transformers.models.clip.modeling_clip", "scipy.optimize"),
    *("transformers.models.bart.modeling_bart", "torch._dynamo", "torch.onnx"),
)


@dataclasses.dataclass
class Report:
    """One family: what became of each variant, or why there is none."""

    family: str
    results: dict[str, Result] = dataclasses.field(default_factory=dict)  # by "sdpa left"
    inputs: tuple[str, ...] = ()
    error: str = ""  # why no model could be made
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # variants the model itself cannot run
    seconds: float = 0.0
    size: Any = None  # one of SIZES that makes a model which runs


def examine(
    family: str, variants: Sequence[tuple[str, Padding]] = VARIANTS, dtype: torch.dtype = torch.float32
) -> Report:
    """Every variant of a family, here and now."""
    start = time.monotonic()
    report = Report(family)
    try:
        size, inputs = made(family)
    except RuntimeError as error:
        report.error = str(error)
        return report
    report.inputs, report.size = tuple(sorted(inputs)), size
    known: dict[str, Any] = {}
    for how, padding in variants:
        variant = f"{how} {padding}"
        try:
            if how not in known:
                known[how] = build(family, how, size).to(dtype)
            given = padded(inputs, padding, known[how])
            if given is None:
                continue
            given = {name: _to(dtype, x) for name, x in given.items()}
            seed()
            with torch.no_grad():
                known[how](**fresh(given))
        except Exception as error:
            if "does not support an attention implementation" not in str(error):
                report.skipped[variant] = _short(error)
            continue
        try:
            report.results[variant] = compare(known[how], given)
        except Exception as error:
            report.skipped[variant] = f"HARNESS {_short(error)} {_line()}"
    report.seconds = time.monotonic() - start
    return report


def made(family: str) -> tuple[Any, Inputs]:
    """The first of SIZES that makes a model which runs, and its inputs. RuntimeError with what each size met."""
    errors: list[str] = []
    for size in SIZES:
        for how in ("sdpa", "eager"):
            try:
                model = build(family, how, size)
            except Exception as error:
                errors.append(f"config {size} {how}: {_short(error)}")
                if isinstance(error, ImportError):
                    raise RuntimeError(_short(error)) from error
                if "scaled_dot_product_attention" in str(error):
                    continue
                break
            try:
                return size, fitting(model, family)
            except Exception as error:
                errors.append(f"inputs {size}: {error}")
            break
    raise RuntimeError(" | ".join(errors))


def _to(dtype: torch.dtype, x: Any) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def fitting(model: Any, family: str) -> Inputs:
    """The first inputs that the model takes. RuntimeError with what it said of each."""
    said: list[str] = []
    for candidate in candidates(model, family):
        tried: set[int | None] = set()
        while True:
            given = ready(candidate, model)
            try:
                seed()
                with torch.no_grad():
                    model(**fresh(given))
                return given
            except Exception as error:
                count = expected_places(error) if "images" in candidate else None
                shown = f"{'+'.join(sorted(given))}: {_short(error)} {_line()}"
                if shown not in said:
                    said.append(shown)
                if count is None or count in tried or count > 2000:
                    break
                tried.add(count)
                candidate = {**candidate, "images": count}
    if inspect.signature(model.forward).parameters.keys() == {"input"}:
        raise RuntimeError("it has no forward of its own, only parts that have one")
    raise RuntimeError(" ;; ".join([*said[:3], *said[3:][-2:]]) or "no inputs were found for its signature")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _line() -> str:
    """Where the innermost frame of transformers or this harness raised."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    frame = next(
        (frame for frame in reversed(frames) if "transformers" in frame.filename or "families" in frame.filename),
        frames[-1],
    )
    return f"({frame.filename.rpartition('/')[2]}:{frame.lineno})"


# In processes of their own.


def _child(work: Callable[[str], Any], failed: Callable[[str, str], Any], family: str, pipe: Connection) -> None:
    os.setpgrp()  # what the family starts ends with it
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        report = work(family)
    except BaseException as error:
        report = failed(family, f"the harness: {type(error).__name__}: {error}")
    pipe.send(report)
    pipe.close()


def run(
    families: Sequence[str],
    jobs: int,
    variants: Sequence[tuple[str, Padding]] = VARIANTS,
    dtype: torch.dtype = torch.float32,
    seconds: int = SECONDS,
) -> Iterator[Report]:
    """The report of each family, as they finish."""

    def failed(family: str, error: str) -> Report:
        return Report(family, error=error)

    return apart(families, lambda family: examine(family, variants, dtype), failed, jobs, seconds, PRELOADED)


def apart(
    families: Sequence[str],
    work: Callable[[str], R],
    failed: Callable[[str, str], R],
    jobs: int,
    seconds: int,
    preloaded: Sequence[str],
) -> Iterator[R]:
    """What `work` makes of each family, in a process of its own, as they finish; or `failed`, with the reason."""
    torch.set_num_threads(1)  # a process with threads cannot be forked
    for name in preloaded:  # once, and not in every process
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    waiting, running = list(families), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            family = waiting.pop(0)
            mine, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=_child, args=(work, failed, family, theirs), daemon=True)
            process.start()
            theirs.close()
            running[mine] = (family, process, time.monotonic())
        done = wait(list(running), timeout=1.0)
        for pipe, (family, process, start) in list(running.items()):
            report: R | None = None
            if pipe in done:
                try:
                    report = pipe.recv()
                except (EOFError, OSError):
                    process.join(1.0)
                    report = failed(family, f"the process ended with {process.exitcode}")
            elif time.monotonic() - start > seconds:
                report = failed(family, f"not done after {seconds} s")
            if report is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
                pipe.close()
                del running[pipe]
                yield report
