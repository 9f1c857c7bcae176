"""Norm-based weights: each weight times the norm of the vector that it multiplies."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analyses.stack import attended_values, blocks, in_full_precision
from headwise.errors import DtypeError, ShapeError
from headwise.records import AttentionRecord
from headwise.records.record import Choice, check_one, positions


@in_full_precision
def value_norms(record: AttentionRecord, *, output_weight: Tensor | None = None) -> Tensor:
    """Compute the norm of the vector that each key can add to the output, ||f_h(x_j)||. Kobayashi et al. 2020.

        f_h(x_j) = v_j^h W_O^h

    Args:
        record: a record that was watched with `values=True`. The values include the bias of their projection, as in the
            paper.
        output_weight: W_O [H, E, M]; None = the W_O of the record. The W_O of a `torch.nn.Linear` is
            `linear.weight.T.unflatten(0, (H, E))`.

    Returns:
        [B, H, K]; 0 for a key to which no query may attend.

    Raises:
        RecordError: the record has no values, or no output weight and none was given.
        ShapeError, DtypeError: output_weight is not a float tensor [H, E, M], or the record is not one record.
    """
    check_one(record, "value_norms")
    return _norms(_Transformed(record, output_weight, None), list(range(record.shape[3])))


@in_full_precision
def norm_based(
    record: AttentionRecord,
    rows: Choice = None,
    cols: Choice = None,
    heads: Choice = None,
    *,
    output_weight: Tensor | None = None,
) -> Tensor:
    """Compute the norm-based weights of each head. Kobayashi et al. 2020, "Attention is Not Only a Weight".

        ||α_ij^h f_h(x_j)|| = α_ij^h ||f_h(x_j)||,   f_h(x_j) = v_j^h W_O^h

    the `weighted_norm` of gorokoba560/norm-analysis-of-transformer. Rows do not sum to 1.

    Args:
        record, output_weight: as in `value_norms`.
        rows, cols, heads: chosen as in `record.weights`.

    Returns:
        [B, heads, rows, cols].

    Raises:
        ArgumentError: rows, cols or heads out of range. Others as in `value_norms`.
    """
    check_one(record, "norm_based")
    keys = positions(cols, record.shape[3], "cols")
    norms = _norms(_Transformed(record, output_weight, heads), keys)
    return record.weights(rows, cols, heads) * norms[:, :, None]


@in_full_precision
def summed_norm_based(
    record: AttentionRecord,
    rows: Choice = None,
    cols: Choice = None,
    heads: Choice = None,
    *,
    output_weight: Tensor | None = None,
) -> Tensor:
    """Compute the norm-based weights of all heads together. Kobayashi et al. 2020, "Attention is Not Only a Weight".

        ||Σ_h α_ij^h f_h(x_j)||,   f_h(x_j) = v_j^h W_O^h

    the `summed_weighted_norm` of gorokoba560/norm-analysis-of-transformer: what key j adds to the output at query i,
    where the heads may cancel each other. For every cell it computes a vector of M numbers for each head, a block of
    cells at a time.

    Args:
        record, output_weight: as in `value_norms`.
        rows, cols: chosen as in `record.weights`.
        heads: the heads of the sum; None = all.

    Returns:
        [B, rows, cols].

    Raises:
        ArgumentError: rows, cols or heads out of range. Others as in `value_norms`.
    """
    check_one(record, "summed_norm_based")
    queries, keys = positions(rows, record.shape[2], "rows"), positions(cols, record.shape[3], "cols")
    transformed = _Transformed(record, output_weight, heads)
    size = record.shape[0] * record.call.dtype.itemsize
    found = []
    for part in blocks(queries, size * transformed.heads * len(keys)):
        weights = record.weights(part, cols, heads).permute(0, 3, 2, 1)  # [B, cols, rows, heads]
        columns, lo = [], 0
        for some in blocks(keys, size * transformed.width * max(len(part), transformed.heads)):
            vectors = transformed.vectors(some).transpose(1, 2)  # [B, cols, heads, M]
            columns.append((weights[:, lo : lo + len(some)] @ vectors).norm(dim=-1))
            lo += len(some)
        found.append(torch.cat(columns, dim=1).mT)
    return torch.cat(found, dim=1)


class _Transformed:
    """The vectors f_h(x_j) = v_j^h W_O^h: the value of key j, projected by the output weight of head h."""

    def __init__(self, record: AttentionRecord, output_weight: Tensor | None, heads: Choice) -> None:
        chosen = positions(heads, record.shape[1], "heads")
        values = attended_values(record)
        projection = _checked(output_weight, record) if output_weight is not None else record.output_weight
        self.projection = projection.to(values)[chosen]  # [heads, E, M]
        self.values = values[:, [h // (record.shape[1] // values.shape[1]) for h in chosen]]  # [B, heads, K, E]
        self.heads, _, self.width = self.projection.shape

    def vectors(self, keys: list[int]) -> Tensor:
        """Compute the projected values of the keys `keys`: [B, heads, keys, M]."""
        return self.values[:, :, keys] @ self.projection


def _norms(transformed: _Transformed, keys: list[int]) -> Tensor:
    """Compute the norms ||f_h(x_j)|| of the projected values of the keys `keys`: [B, heads, keys]."""
    size = len(transformed.values) * transformed.heads * transformed.width * transformed.values.itemsize
    return torch.cat([transformed.vectors(part).norm(dim=-1) for part in blocks(keys, size)], dim=2)


def _checked(output_weight: Tensor, record: AttentionRecord) -> Tensor:
    heads, width = record.shape[1], record.v.shape[3]
    if not isinstance(output_weight, Tensor) or not output_weight.is_floating_point():
        received = output_weight.dtype if isinstance(output_weight, Tensor) else type(output_weight).__name__
        raise DtypeError(f"output_weight must be a float tensor [H, E, M]. Received: output_weight={received}")
    if output_weight.ndim != 3 or output_weight.shape[:2] != (heads, width):
        raise ShapeError(
            f"output_weight must be [H, E, M] = [{heads}, {width}, M]. Received: output_weight="
            f"{list(output_weight.shape)}. That of a torch.nn.Linear is linear.weight.T.unflatten(0, (H, E))"
        )
    return output_weight.detach()
