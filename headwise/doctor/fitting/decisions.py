"""The decisions in attention, right and wrong: the scale, the split and merge of heads, the softmax's axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor

# D head width, M model width, H heads, N keys
SCALES: Mapping[str, Callable[[float, float, float, float], float]] = {
    "sqrt(head width)": lambda d, m, h, n: d**-0.5,
    "none": lambda d, m, h, n: 1.0,
    "sqrt(width)": lambda d, m, h, n: m**-0.5,
    "times sqrt(head width)": lambda d, m, h, n: d**0.5,
    "head width": lambda d, m, h, n: 1 / d,
    "width": lambda d, m, h, n: 1 / m,
    "fourth root": lambda d, m, h, n: d**-0.25,
    "sqrt(heads)": lambda d, m, h, n: h**-0.5,
    "heads": lambda d, m, h, n: 1 / h,
    "sqrt(length)": lambda d, m, h, n: n**-0.5,
    "length": lambda d, m, h, n: 1 / n,
    "times sqrt(width)": lambda d, m, h, n: m**0.5,
    "negative": lambda d, m, h, n: -(d**-0.5),
}

SPLITS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    # [B, N, h·D] -> [B, h, N, D]
    "heads": lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2),
    "view": lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
    "view turned": lambda x, h: x.reshape(x.shape[0], h, -1, x.shape[1]).transpose(2, 3),
    "one head": lambda x, h: x[:, None],
    "over heads": lambda x, h: x.unflatten(-1, (h, -1)),  # [B, N, h, D]: heads take the place of positions
    "batch second": lambda x, h: (
        x.reshape(x.shape[1], x.shape[0] * h, -1).transpose(0, 1).reshape(x.shape[0], h, x.shape[1], -1)
    ),
}

MERGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    # [B, H, N, E] -> [B, N, H·E]
    "heads": lambda y: y.transpose(1, 2).flatten(2),
    "view": lambda y: y.reshape(y.shape[0], y.shape[2], -1),
    "turned view": lambda y: y.transpose(2, 3).reshape(y.shape[0], y.shape[2], -1),
    "inside out": lambda y: y.permute(0, 3, 1, 2).reshape(y.shape[0], y.shape[2], -1),
    "batch inside": lambda y: y.transpose(0, 1).reshape(y.shape[0], y.shape[2], -1),
    "positions outside": lambda y: y.permute(2, 0, 1, 3).reshape(y.shape[0], y.shape[2], -1),
    "heads outside": lambda y: y.transpose(0, 1).reshape(y.shape).transpose(1, 2).flatten(2),
    "own heads outside": lambda y: y.reshape(y.shape[1], y.shape[0], *y.shape[2:]).permute(1, 2, 0, 3).flatten(2),
    "batch second": lambda y: y.reshape(-1, *y.shape[2:]).transpose(0, 1).reshape(y.shape[0], y.shape[2], -1),
    "over heads": lambda y: y.flatten(2),  # of [B, N, H, E]
    "over heads turned": lambda y: y.transpose(1, 2).reshape(y.shape[0], y.shape[1], -1),  # of [B, N, H, E]
}

AXES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "keys": lambda s: s.softmax(-1),
    "queries": lambda s: s.softmax(-2),
    "heads": lambda s: s.softmax(1),
    "batch": lambda s: s.softmax(0),
    "batch and heads": lambda s: s.flatten(0, 1).softmax(0).view_as(s),
    "all pairs": lambda s: s.flatten(2).softmax(-1).view_as(s),
    "none": lambda s: s.masked_fill(s == -math.inf, 0.0),
    "twice": lambda s: s.softmax(-1).softmax(-1),
    "sigmoid": lambda s: s.sigmoid(),
    "relu": lambda s: s.relu(),
    "log": lambda s: s.log_softmax(-1),
}
