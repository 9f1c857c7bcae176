"""Gradient relevance: how much a loss depends on each input token, by attention times its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headwise.analyses.stack import (
    attended_values,
    by_key_head,
    consecutive,
    in_full_precision,
    listed,
    named,
    product_rows,
    row_blocks,
    times_rows,
    unit_rows,
    with_gradients,
)
from headwise.errors import ArgumentError, RecordError
from headwise.records import AttentionRecord
from headwise.records.record import Choice, positions


@in_full_precision
def relevance(records: Iterable[AttentionRecord], *, rows: Choice = None) -> Tensor:
    """Compute the relevance of input tokens by attention and its gradient. Chefer, Gur & Wolf, ICCV 2021, eq. 5 and 6.

        Ā = mean_h (∇A ⊙ A)⁺        R ← R + Ā R,   from R = I, layer by layer:   R = (I + Ā_L) … (I + Ā_1)

    The gradient of the attention weights follows from what the record keeps: O = A V, so ∇A = ∇O Vᵀ. The loss is the
    number on which backward() was called, in the paper the score of the class to be explained; to explain the [CLS]
    token of an encoder, read row 0. This is the variant without LRP: A itself is multiplied, not its relevance.

    Args:
        records: a `Seen` or a sequence of self-attention records of one forward pass, lowest layer first, watched with
            `values=True, gradients=True`.
        rows: which positions of the top layer (r of them), chosen as in `record.weights`. Each takes O(N) memory.

    Returns:
        [B, r, N]. It includes the identity, with which R begins: row i is at least 1 at token i.

    Raises:
        RecordError: a record (the message names it) without values or gradients, with dropout, or that is not
            self-attention over the same tokens as the others.
        ArgumentError: no records, or rows out of range.
    """
    layers = consecutive(records, "relevance")
    with_gradients(layers, "relevance")
    chosen = positions(rows, layers[0].shape[3], "rows")
    return product_rows(chosen, layers, _one_plus)


@in_full_precision
def relevance_by_layer(records: Iterable[AttentionRecord], rows: Sequence[int]) -> Tensor:
    """Compute how `relevance` builds up, layer by layer from the top, for one position in each example: [B, L + 1, N].

    `rows` has one position of the top layer for each example. Entry 0 is this row of the identity I, entry 1 of I +
    Ā_L, entry 2 of (I + Ā_L) (I + Ā_(L-1)), and so on. The last entry is the row that `relevance` gives.

    Raises the errors of `relevance`, and ArgumentError if there is not one position for each example.
    """
    layers = consecutive(records, "relevance_by_layer")
    with_gradients(layers, "relevance_by_layer")
    batch, _, _, length = layers[0].shape
    if len(rows) != batch:
        raise ArgumentError(f"rows must be one for each of the {batch} examples. Received: rows={list(rows)}")
    x = unit_rows(positions(rows, length, "rows"), layers[-1])[range(batch), range(batch), None]  # one row per example
    found = [x]
    for record in reversed(layers):
        found.append(times_rows(found[-1], [record], _one_plus))
    return torch.cat([each.to(x.device) for each in found], dim=1)


@in_full_precision
def cross_relevance(
    encoder: Iterable[AttentionRecord],
    decoder: Iterable[AttentionRecord],
    cross: Iterable[AttentionRecord],
    *,
    rows: Choice = None,
) -> Tensor:
    """Compute the relevance of the encoder's tokens for the decoder's.

    Chefer, Gur & Wolf, ICCV 2021, equations 5 to 10. With d for the decoder's tokens, e for the encoder's, and Ā of
    `relevance`, every decoder layer does

        R_dd ← R_dd + Ā R_dd,   R_de ← R_de + Ā R_de            for its self-attention (equations 6 and 7)
        R_de ← R_de + R̄_ddᵀ Ā R̄_ee                              for its cross-attention (equation 10)
        R̄ = rownorm(R - I) + I                                  (equations 8 and 9)

    from R_dd = I, R_de = 0, and R_ee = `relevance` of the encoder. A row of R - I that is all 0 stays 0 (the authors'
    code divides 0 by 0 there, and replaces the NaN by 0). No matrix but the result is made: the lower layers are
    computed again for every layer above them, L² times in total.

    Args:
        encoder: the encoder's self-attention, lowest layer first, watched with `values=True, gradients=True`.
        decoder: the decoder's self-attention, in the same order and watched in the same way.
        cross: the decoder's cross-attention, one record for each record of `decoder`, whose self-attention it follows.
        rows: which of the decoder's positions (r of them), chosen as in `record.weights`.

    Returns:
        R_de, [B, r, K], for the K tokens of the encoder.

    Raises:
        RecordError: a record (the message names it) that does not fit, without values or gradients, or with dropout.
        ArgumentError: no records, or rows out of range.
    """
    lower, own = consecutive(encoder, "cross_relevance: encoder"), consecutive(decoder, "cross_relevance: decoder")
    across = listed(cross, "cross_relevance: cross")
    _check_cross(lower, own, across)
    for name, layers in (("encoder", lower), ("decoder", own), ("cross", across)):
        with_gradients(layers, f"cross_relevance: {name}")
    batch, _, q_len, k_len = across[0].shape
    chosen = positions(rows, q_len, "rows")
    device, dtype = across[0].q.device, across[0].call.dtype
    y = unit_rows(chosen, across[0])
    found = torch.zeros(batch, len(chosen), k_len, dtype=dtype, device=device)
    # From the top layer down: y holds the chosen rows of the product of (I + Ā) of the self-attention above.
    for layer in reversed(range(len(own))):
        z = _normalised_columns(y, own[: layer + 1])
        for part in row_blocks(across[layer]):
            found += (z[:, :, part].to(across[layer].q.device) @ _bar(across[layer], part).to(dtype)).to(device)
        y = times_rows(y, [own[layer]], _one_plus)
    # R̄_ee is the same for every layer, and linear: it is applied once, to the sum.
    total = _times_columns(found.new_ones(batch, 1, k_len), lower) - 1.0
    found = found.to(total.device)
    scaled = found / total.masked_fill(total == 0, 1.0)
    return times_rows(scaled, lower, _one_plus).to(found.device) - scaled + found


def _bar(record: AttentionRecord, rows: list[int]) -> Tensor:
    """Compute the rows `rows` of the matrix Ā = mean_h (∇A ⊙ A)⁺ of one layer (equation 5): [B, r, K]."""
    grad = by_key_head(record.grad[:, :, rows].to(record.call.dtype), attended_values(record).mT)
    return (grad * record.weights(rows=rows)).clamp(min=0.0).mean(1)


def _one_plus(record: AttentionRecord, rows: list[int]) -> Tensor:
    """Compute the rows `rows` of the matrix I + Ā of one layer: [B, r, N]."""
    found = _bar(record, rows)
    found[:, range(len(rows)), rows] += 1.0
    return found


def _times_columns(y: Tensor, layers: list[AttentionRecord]) -> Tensor:
    """Compute (I + Ā_L) … (I + Ā_1) y from the lowest layer up. The r column vectors are the rows of `y` [B, r, N]."""
    for record in layers:
        y = y.to(record.q.device)
        y = torch.cat([y @ _one_plus(record, rows).to(y.dtype).mT for rows in row_blocks(record)], dim=2)
    return y


def _normalised_columns(y: Tensor, layers: list[AttentionRecord]) -> Tensor:
    """Compute R̄ y with R̄ = rownorm(R - I) + I. The r column vectors to multiply are the rows of `y` [B, r, N]."""
    sums, products = _times_columns(torch.cat([y.new_ones(len(y), 1, y.shape[2]), y], dim=1), layers).split(
        [1, y.shape[1]], 1
    )
    y, total = y.to(sums.device), sums - 1.0
    return (products - y) / total.masked_fill(total == 0, 1.0) + y


def _check_cross(lower: list[AttentionRecord], own: list[AttentionRecord], across: list[AttentionRecord]) -> None:
    if len(own) != len(across):
        raise RecordError(
            "cross_relevance needs one cross record for each decoder layer. "
            f"Received: len(decoder)={len(own)}, len(cross)={len(across)}"
        )
    expected = (own[0].shape[0], own[0].shape[2], lower[0].shape[3])
    for i, record in enumerate(across):
        batch, _, q_len, k_len = record.shape
        if (batch, q_len, k_len) != expected or lower[0].shape[0] != batch:
            raise RecordError(
                f"cross_relevance needs cross-attention from the decoder's tokens to the encoder's, B, Q, K = "
                f"{list(expected)}. Received: cross {named(record, i)} with {[batch, q_len, k_len]}"
            )
