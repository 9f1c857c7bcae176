"""Edits of attention, for `headwise.edit`: what may be changed in any model while it runs.

    ablate          heads whose output becomes 0, its mean, or the output for another example
    mean_outputs    the means of heads over a data set, for ablate
    head_mask       weights of heads times a number, which trains
    block, only     attention knockout: queries that may not attend to some keys, or only to some keys
    steer           more or less weight on some keys
    temperature, topk, window      sharper or sparser attention
    patch           weights, output, q, k or v are taken from another run
    call, weights, output          any function of the call, its weights or its output

Each edit takes `where` first, as `watch(only=)` does, and `heads`, `examples` and `steps`. To write another edit,
subclass `Edit`.
"""

from headwise.edits.ablate import ablate, head_mask
from headwise.edits.block import block, only
from headwise.edits.edit import Edit
from headwise.edits.functions import call, output, weights
from headwise.edits.means import mean_outputs
from headwise.edits.patch import patch
from headwise.edits.sparsify import temperature, topk, window
from headwise.edits.steer import steer
from headwise.edits.where import Where

__all__ = [
    "Edit",
    "Where",
    "ablate",
    "block",
    "call",
    "head_mask",
    "mean_outputs",
    "only",
    "output",
    "patch",
    "steer",
    "temperature",
    "topk",
    "weights",
    "window",
]
