"""Edits of attention, for `headwise.edit`: what may be changed in any model while it runs.

    ablate          replace the output of heads by 0, by a mean, or by the output for another example
    mean_outputs    compute the mean output of each head over a data set, for ablate
    head_mask       multiply the weights of each head by a number, which can be trained
    block, only     attention knockout: forbid queries to attend to some keys, or allow them only some keys
    steer           put more or less weight on some keys
    temperature, topk, window      make attention sharper or sparser
    patch           take the weights, the output, q, k or v from another run
    call, weights, output          replace a call (one attention computation), its weights or its output by a function

The first argument of each edit, `where`, selects layers as `watch(only=)` does; `heads`, `examples` and `steps` select
what is edited there. To write another edit, subclass `Edit`.
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
