"""Every check of the doctor, one per file: what it looks for, how, and the findings that it can report.

A check is a module with `FINDINGS`, the names of its findings, and `check(patient)`, which yields findings, or raises
NotChecked if the check cannot be made.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient


class Check(Protocol):
    """A module of this package."""

    FINDINGS: tuple[str, ...]

    def check(self, patient: Patient) -> Iterator[Finding]: ...


def _load(names: str) -> dict[str, Check]:
    """The checks of these names, in this order; `laws.cache` is in the folder of laws."""
    paths = {x.rpartition(".")[2]: x if "." in x else f"checks.{x}" for x in names.split()}
    return {name: cast(Check, importlib.import_module(f"headwise.doctor.{path}")) for name, path in paths.items()}


# SOURCE checks read the code alone, also where no call is found.
SOURCE = _load("result_discarded layers_shared")
# READ checks examine the traced operations and find causes; PROBED checks examine behaviour and may find symptoms only.
READ = _load("""
layout head_merge heads_alike
projection_order lora_order argument_order gqa_order
wrong_scale bias_scaled settings_unused
rope rope_parts rope_precision alibi grid_positions
norm_axis norm_swapped
mask_cells mask_infinite laws.visibility laws.windows inner_padding
softmax_split scores_misaligned weights_misaligned weights_sum residual dropout_misplaced softmax_precision
""")
PROBED = _load("""
output_shape determinism state_kept train_eval paths_differ input_modified noncontiguous
batch_mixing reshape_scrambles token_split output_misplaced sizes
mask_claims laws.edges query_cancels mask_ignored mask_integers masked_weight
length_mask mask_broadcast
pad_tokens ids_mask padding_read padding_row mask_fill
laws.unread laws.reach empty_row masked_nan
half example_half unused_parameter idle_part gradient_blocked state_dict
cache cache_gradient left_padding laws.documents cross_mask
positions_ignored positions_in_values relative_index
residual_normed residual_doubled paged_cache sampling_order memory_kept capped_mask
normaliser pooled_mean softmax_of_one zero_start gate_linear
weights_returned heads_dividing explained
""")
