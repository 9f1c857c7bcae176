"""Every attention layer of a whole model: found by running it once. Each kind of layer is diagnosed once.

diagnose_model(model, lambda: model(ids, attention_mask=mask))
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.capture.context import watch
from headwise.capture.sites import clean
from headwise.doctor.calling.spec import Spec
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.parts import calls_in
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
        examples = calls_in({path: modules[path] for path in layers}, run)
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


def together(paths: Iterable[str]) -> str:
    """Some paths in short form: "encoder.layer.{0-11}.attention"."""
    stacks: dict[tuple[str, ...], list[list[str]]] = {}
    for path in paths:
        parts = path.split(".")
        stacks.setdefault(tuple("*" if x.isdigit() else x for x in parts), []).append(parts)
    return ", ".join(map(_as_range, stacks.values()))


def _as_range(stack: Sequence[list[str]]) -> str:
    """Paths that differ in their numbers: as a range if only one number changes, else the first and a count."""
    first = ".".join(stack[0]) or "the model"
    changing = [i for i, column in enumerate(zip(*stack, strict=True)) if len(set(column)) > 1]
    if len(changing) != 1:
        return first if len(stack) == 1 else f"{first} and {len(stack) - 1} similar"
    (i,) = changing
    numbers = enumerate(sorted(int(path[i]) for path in stack))
    runs = [[number for _, number in run] for _, run in itertools.groupby(numbers, lambda x: x[1] - x[0])]
    told = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return ".".join([*stack[0][:i], f"{{{told}}}", *stack[0][i + 1 :]])


def _is_place(name: str) -> bool:
    """Whether an attribute says where a layer stands, such as layer_idx, and not what it computes."""
    what = [name.removesuffix(end).rstrip("_").removesuffix("s") for end in ("", *_NUMBERED)]
    return name in ("idx", "index", "name") or any(x.endswith(("layer", "block", "depth", "stage")) for x in what)


_NUMBERED = ("idx", "id", "index", "number", "num", "i", "n")


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
        if not name.startswith("_") and isinstance(value, bool | int | float | str | None) and not _is_place(name)
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
