"""Sizes from a module's attributes, its config and the shapes of its weights: widths, heads, lengths.

Everything here is a list of guesses, the most likely first; `search.py` finds out which are right.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from headwise.doctor.calling import names

_FRAMES = 12  # of a signal
_SIDES = (
    *("input_resolution", "resolution", "window_size", "window", "grid_size", "grid", "patch_grid", "feature_size"),
    *("feat_size", "map_size"),
)  # of a map of tokens
_LARGE = 1024  # tokens of a window: a number that is large as a side may be that of all tokens
_STEPS = 512  # the most tokens for a module that loops over them


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1 << 20


BUILT_WITH = "_built_with"  # attribute of a module: the arguments of its constructor, of which it may keep none


def places(module: nn.Module) -> Iterator[Any]:
    """Where sizes may be stored: the module, its arguments, its config, then its submodules and their configs."""
    for part in module.modules():
        if part is not module and type(part).__module__.startswith("torch.nn") and not hasattr(part, "num_heads"):
            continue  # the groups of a convolution are not those of attention
        yield part
        for name in (BUILT_WITH, *names.CONFIGS):
            config = part.__dict__.get(name)
            if config is not None and not isinstance(config, (str, int, float, bool, torch.Tensor, nn.Module)):
                yield config


def find(module: nn.Module, wanted: list[str]) -> list[int]:
    """Every value of an attribute with one of these names, in the order of places and then of names."""
    found: list[int] = []
    for place in places(module):
        for name in wanted:
            hit = names.attribute(place, [name], _is_size)
            if hit is not None and hit[1] not in found:
                found.append(hit[1])
    return found


def _by_default(module: nn.Module, wanted: list[str]) -> list[int]:
    """The same of the defaults of its constructor's arguments: a whole model often keeps none of its sizes."""
    arguments = inspect.signature(type(module).__init__).parameters
    return [arguments[name].default for name in wanted if name in arguments and _is_size(arguments[name].default)]


def batch(module: nn.Module) -> int:
    """A number of examples that is no other size of the module, so that no axis is taken for that of the batch."""
    attributes = (x if isinstance(x, dict) else getattr(x, "__dict__", {}) for x in places(module))
    numbers = {n for known in attributes for n in known.values() if isinstance(n, int)}
    tensors = (x for x in (*module.parameters(), *module.buffers()) if not is_lazy(x))
    numbers |= {n for x in tensors for n in x.shape}
    return next((n for n in (3, 4, 6, 11) if n not in numbers), 13)


def heads(module: nn.Module) -> int | None:
    """The number of heads by an attribute, or None."""
    found = find(module, names.HEADS)
    if found:
        return found[0]
    lists = [
        x for name, x in module.named_modules() if isinstance(x, nn.ModuleList) and "head" in name.rsplit(".", 1)[-1]
    ]
    return len(lists[0]) if lists and len(lists[0]) else None


def kv_heads(module: nn.Module) -> int | None:
    """The number of key and value heads by an attribute, if it divides the number of heads."""
    count = heads(module)
    found = [n for n in find(module, names.KV_HEADS) if count is None or count % n == 0]
    return found[0] if found else None


def head_dims(module: nn.Module) -> list[int]:
    """Widths of a head, by attributes and by division."""
    found = find(module, names.HEAD_DIMS)
    count = heads(module)
    if count:
        found += [w // count for w in widths(module) if w % count == 0 and w // count not in found]
    return found


def rope_dims(module: nn.Module) -> list[int]:
    """How many dimensions of a head may be rotated."""
    found = find(module, names.ROPE_DIMS)
    return found + [n for n in head_dims(module) if n % 2 == 0 and n not in found]


def stated_lengths(module: nn.Module) -> list[int]:
    """Lengths that a module may require, by attributes or by its constructor's arguments."""
    return [n for n in find(module, names.LENGTHS) + _by_default(module, names.LENGTHS) if 1 < n <= _LARGE]


def lengths(module: nn.Module) -> list[int]:
    """Lengths that a module may require: as stated, of windows, and the sizes of tables and masks."""
    found = stated_lengths(module)
    with_class: list[int] = []  # a map of tokens and a class token
    for place in places(module):
        for name in _SIDES:
            window = names.attribute(place, [name], lambda x: x is not None)
            side = window[1] if window else None
            sides = side if isinstance(side, (tuple, list)) else (side, side)
            if all(_is_size(n) for n in sides):
                area = math.prod(sides)  # or the number may be that of all tokens
                with_class += [area + 1]
                found += [side, area] if isinstance(side, int) and area > _LARGE else [area]
    for tensor in (*module.buffers(), *module.parameters()):
        if not is_lazy(tensor):
            found += [n for n in tensor.shape[-2:] if n > 1]
    found[4:4] = with_class[:1]
    most = _STEPS if recurs(module) else 4096
    return list(dict.fromkeys(n for n in found if 1 < n <= most))


def recurs(module: nn.Module) -> bool:
    """Whether it has an RNN: it may compute one token after the other."""
    return any(isinstance(part, (nn.RNNBase, nn.RNNCellBase)) for part in module.modules())


def image_sides(module: nn.Module) -> list[int]:
    """Sides of the square images that a module may require: as stated, and of as many patches as a table has positions,
    with a class token or without.
    """
    found = find(module, ["image_size", "img_size"]) + _by_default(module, ["image_size", "img_size"])
    rows = [x.shape[-2] for x in (*module.buffers(), *module.parameters()) if not is_lazy(x) and x.ndim in (2, 3)]
    for layer in module.modules():
        if (
            isinstance(layer, nn.Conv2d)
            and layer.kernel_size == layer.stride
            and layer.stride[0] == layer.stride[1] > 1
        ):
            roots = [math.isqrt(n) for each in rows for n in (each, each - 1) if n > 1 and math.isqrt(n) ** 2 == n]
            found += [layer.stride[0] * root for root in roots]
    return list(dict.fromkeys(found))


def samples(module: nn.Module) -> int | None:
    """Samples of a signal of one channel that a module takes, if its first convolution does: some frames of it."""
    layers = [part for part in module.modules() if isinstance(part, nn.Conv1d)]
    if not layers or layers[0].in_channels != 1:
        return None
    steps = [layer for layer in layers if layer.stride[0] > 1]
    return _FRAMES * math.prod(layer.stride[0] for layer in steps) + sum(layer.kernel_size[0] for layer in layers)


def channels(module: nn.Module) -> list[int]:
    """Channels of an image that the constructor takes by default: a model that cuts patches itself keeps no number."""
    return _by_default(module, ["channels", "in_channels", "in_chans", "num_channels", "n_channels", "c_in"])[:2]


def in_features(layer: nn.Module) -> int | None:
    """The input width of a layer: Linear, convolutions, Hugging Face's Conv1D, norms, or any layer that states it."""
    for name in ("in_features", "in_channels", "nx", "input_dim", "in_dim"):
        value: Any = getattr(layer, name, None)
        if _is_size(value):
            return int(value)
    weight = getattr(layer, "weight", None)
    if type(layer).__name__ == "Conv1D" and isinstance(weight, torch.Tensor):
        return int(weight.shape[0])
    shape = getattr(layer, "normalized_shape", None)
    return int(shape[-1]) if isinstance(shape, (tuple, torch.Size)) and len(shape) else None


def _of_projections(module: nn.Module, letters: str) -> list[int]:
    """The input widths of layers whose names say that they project queries (or keys, or values)."""
    found = []
    for path, layer in module.named_modules():
        last = names.simple(path.rsplit(".", 1)[-1])
        width = in_features(layer)
        words = last.replace("proj", "").replace("linear", "").strip("_").split("_")
        if width is not None and any(letter in words or letter == last for letter in letters.split()):
            found.append(width)
    return found


def widths(module: nn.Module) -> list[int]:
    """Guesses of the width of the queries (and of all other inputs, if nothing else is stated)."""
    own = find(module, names.WIDTHS)
    guesses = own[:3] + _of_projections(module, "q query queries wq q_a to_q qkv to_qkv in c_attn toqueries")
    guesses += [layer.out_features for layer in module.modules() if isinstance(layer, nn.LazyLinear)][::-1]
    layers = [n for n in (in_features(layer) for layer in module.modules()) if n is not None]
    guesses += layers[:8] + own[3:] + _by_default(module, names.WIDTHS)[:2]
    count = heads(module)
    if count and not layers and next(module.parameters(), None) is None:
        guesses.insert(0, 16 * count)  # any width works here; heads of width 1 would hide a scale
    if count:
        guesses += [count * n for n in layers[:4]] + [count * n for n in find(module, names.HEAD_DIMS)]
    for parameter in module.parameters():
        if parameter.ndim >= 2 and not is_lazy(parameter):
            guesses += [parameter.shape[0], parameter.shape[-1], parameter.shape[1]]
            if parameter.ndim == 4:
                guesses.append(parameter.shape[0] * parameter.shape[1])
    for key, value in vars(module).items():
        if _is_size(value) and not key.startswith("_"):
            guesses.append(value)
    guesses += [64, 32, 16, 128, 256, 512, 768, 1024, 8]
    return list(dict.fromkeys(int(n) for n in guesses if n >= 1))


def key_widths(module: nn.Module) -> list[int]:
    """Guesses of the width of the keys or of the memory, if it differs from that of the queries."""
    found = find(module, names.KEY_WIDTHS) + _of_projections(module, "k key keys wk to_k to_kv kv tokeys")
    return list(dict.fromkeys(found))


def value_widths(module: nn.Module) -> list[int]:
    """Guesses of the width of the values, if it differs."""
    found = find(module, names.VALUE_WIDTHS) + _of_projections(module, "v value values wv to_v to_kv kv tovalues")
    return list(dict.fromkeys(found))
