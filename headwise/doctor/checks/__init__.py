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
laws.layout laws.outputs laws.projections
wrong_scale bias_scaled settings_unused
rope rope_parts rope_precision alibi grid_positions
norm_axis norm_swapped causal_unasked
mask_cells mask_infinite built_in_mask layer_windows window_sides window_shape far_future inner_padding
laws.split scores_misaligned laws.weights residual dropout_misplaced softmax_precision
""")
PROBED = _load("""
output_shape determinism state_kept train_eval paths_differ input_modified noncontiguous
batch_mixing reshape_scrambles token_split tokens_unread axis_unread sizes
mask_claims edges memory_ignored query_cancels mask_ignored head_mask media_before mask_integers masked_weight
length_mask mask_broadcast
pad_tokens ids_mask padding_read padding_row mask_fill
causal_leak empty_row masked_nan
half example_half unused_parameter idle_part gradient_blocked state_dict
cache cache_gradient left_padding packing cross_mask
positions_ignored positions_in_values relative_index class_token
residual_normed residual_doubled global_tokens paged_cache chosen_twice memory_kept end_token capped_mask
laws.normaliser pooled_mean zero_start gate_linear
heads_dividing shift_mask explained
""")
