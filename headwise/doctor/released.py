"""What a finding becomes in released code, where a habit of the code is a convention that trained weights rely on.

A check that knows of such a convention names the finding and the case to `Patient.severity` or `Patient.reports`. All
other findings are the same wherever the code is.
"""

from __future__ import annotations

from headwise.doctor.finding import Severity

# "finding: case" -> the gravest that it is in released code; None: it is not looked for.
GRAVEST: dict[str, Severity | None] = {
    # The weights were trained with it, and the results are right for them.
    "gqa-order: tiled": "note",
    "qkv-order: of a fused projection": "note",
    "projection-reused: of slices": "risk",
    "rope-axis: of the table": "risk",
    "t5-scaled: beside a T5 bias": None,
    "wrong-scale: of the scores": "risk",
    "wrong-scale: none": None,
    "wrong-scale: of a bias": "note",
    "wrong-scale: without YaRN's temperature": "note",
    "window-off-by-one: the other reading": "note",  # a window of w has w keys, or w before the query
    # It is meant: papers reduce over the batch, attend to their padding, estimate a gradient.
    "batch-mixing: in the outputs": "risk",
    "dropout-in-eval: random numbers": "note",  # slots and latents that are drawn
    "gradient-wrong: a custom backward": "risk",
    "padding-attended: of blocks": "risk",
    "shift-mask: between borders": "risk",
    "softmax-axis: over the queries": "risk",  # keys choose among queries, as in slots and groups
    "softmax-unstable: in float32": "risk",
    # Its own model passes what is right for it.
    "batch-mixing: said to be batch first": "risk",
    "left-padding: promised": None,  # `generate` passes the positions
    "weights-averaged: without a choice": "note",  # what PyTorch's own attention returns
    "sizes-fixed: more keys than queries": "risk",
    "sizes-fixed: queries, keys and values": "note",  # it may be meant for one sequence
    # An option of its config leaves a part without use.
    "unused-parameter: of a vector": "risk",
    "window-ignored: in every layer": None,
    # Its outputs are in a layout that is not known here.
    "output-shape: no output": None,
}
