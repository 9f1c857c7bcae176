"""Every attention layer of a whole model: found by running it once. Each kind of layer is diagnosed once.

diagnose_model(model, lambda: model(ids, attention_mask=mask))
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.capture.context import watch
from headwise.capture.sites import clean
from headwise.doctor.calling.spec import Spec
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.result import Diagnosis
from headwise.errors import DoctorError
from headwise.registry import find_framework


@dataclasses.dataclass(frozen=True)
class Layer:
    """A module that computes attention, and how the model called it."""

    path: str
    module: nn.Module
    example: tuple[tuple[Any, ...], dict[str, Any]]


def diagnose_model(
    model: Any,
    run: Callable[[], object],
    *,
    spec: Spec | None = None,
    timeout: float | None = 60.0,
    say: Callable[[str, int, int], object] = lambda *_: None,
) -> tuple[Diagnosis, ...]:
    """One diagnosis for each kind of attention layer. Layers of one kind differ only in the values of their weights.

    Args:
        model: any torch model, in eval mode; or a Keras model that was called once, on any backend.
        run: runs it on a short input; best are two examples of which one is padded.
        spec: facts about every layer, stated by hand.
        timeout: seconds for each kind of layer.
        say: called before each kind is examined, with its path, its number from 1, and the number of kinds.

    Raises:
        DoctorError: no attention was found.
    """
    kinds = group(find_layers(model, run))
    found: list[tuple[list[str], Diagnosis]] = []
    for number, alike in enumerate(kinds, start=1):
        layer = alike[0]
        say(layer.path, number, len(kinds))
        diagnosis = diagnose(layer.module, spec=spec, example=layer.example, timeout=timeout)
        paths = [each.path for each in alike]
        same = next((known for known, other in found if _says_the_same(other, diagnosis)), None)
        if same is None:
            found.append((paths, diagnosis))
        else:
            same += paths
    return tuple(
        dataclasses.replace(diagnosis, subject=f"{diagnosis.subject} ({together(paths)})") for paths, diagnosis in found
    )


def find_layers(model: Any, run: Callable[[], object]) -> list[Layer]:
    """The modules that compute attention, in the order in which they ran, each with the arguments of its first call.

    If a module without weights computes it (only a function in module form), the layer is the module around it that
    has the projections. Raises DoctorError if none is found.
    """
    framework = find_framework(model)
    if framework is not None:
        others = [
            Layer(path, framework.as_torch(x), given) for path, x, given in framework.attention_layers(model, run)
        ]
        return others or _none(model)
    with torch.no_grad():
        with watch(model) as seen:
            run()
        modules = {clean(name): module for name, module in model.named_modules()}
        paths = [site.name for site in seen.coverage() if site.name in modules and site.calls]
        layers = list(dict.fromkeys(_with_weights(path, modules) for path in paths))
        if not layers:
            return _none(model)
        examples: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        with contextlib.ExitStack() as hooks:
            for path in layers:

                def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = path) -> None:
                    if path not in examples:
                        examples[path] = copy.deepcopy((args, kwargs))

                hooks.callback(modules[path].register_forward_pre_hook(keep, with_kwargs=True).remove)
            run()
    # If forward was called from another module's method, not through __call__, its arguments are not known.
    return [Layer(path, modules[path], examples[path]) for path in layers if path in examples]


def _none(model: object) -> list[Layer]:
    raise DoctorError(
        f"no attention was seen in {type(model).__name__} while it ran; expected queries, keys and a softmax. "
        "To examine a layer alone, name its class, as in package.module:MyAttention"
    )


def group(layers: Iterable[Layer]) -> list[list[Layer]]:
    """The layers of each kind: of one class, with equal settings and shapes, called in the same way."""
    kinds: dict[Any, list[Layer]] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer), []).append(layer)
    return list(kinds.values())


def together(paths: Sequence[str]) -> str:
    """Some paths in short form: "encoder.layer.{0-11}.attention"."""
    stacks: dict[str, list[str]] = {}
    for path in paths:
        stacks.setdefault(_NUMBER.sub("*", path), []).append(path)
    return ", ".join(_as_range(x) if len(x) > 1 else x[0] or "the model" for x in stacks.values())


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_PLACE = re.compile(r"(layer|block|depth|stage)s?(_?(idx|id|index|number|num|i|n))?$|^(idx|index|name)$")


def _with_weights(path: str, modules: dict[str, nn.Module]) -> str:
    inner = path
    while path and not any(True for _ in modules[path].parameters()):
        path = path.rpartition(".")[0]
    return path or inner


def _kind(layer: Layer) -> Any:
    settings = [
        (path, name, value)
        for path, module in layer.module.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str | None) and not _PLACE.search(name)
    ]
    tensors = [(name, tuple(x.shape), x.dtype) for name, x in layer.module.state_dict(keep_vars=True).items()]
    args, kwargs = layer.example
    call = (*map(_form, args), *((name, _form(value)) for name, value in sorted(kwargs.items())))
    return type(layer.module), repr(settings), repr(tensors), call


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_form, value))})"
    return repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _says_the_same(one: Diagnosis, other: Diagnosis) -> bool:
    def told(diagnosis: Diagnosis) -> Any:
        found = [(x.name, x.severity, x.evidence, x.where) for x in diagnosis.findings]
        return diagnosis.subject, found, diagnosis.understood, dict(diagnosis.unchecked)

    return told(one) == told(other)


def _as_range(stack: Sequence[str]) -> str:
    """Paths that differ in their numbers: as a range if only one number changes, else the first and a count."""
    numbers = [[int(x) for x in _NUMBER.findall(path)] for path in stack]
    changing = [i for i, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    if len(changing) != 1:
        return f"{stack[0]} and {len(stack) - 1} similar"
    column = [row[changing[0]] for row in numbers]
    count = -1

    def put(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{{{_runs(column)}}}" if count == changing[0] else match[0]

    return _NUMBER.sub(put, stack[0])


def _runs(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
