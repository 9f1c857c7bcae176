"""speechbrain: its attention layers, and encoders of its models."""

from __future__ import annotations

import torch

from tests.capture.libraries.library import Cases, called


def cases() -> Cases:
    from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoder
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.lobes.models.transformer.Transformer import TransformerDecoder, TransformerEncoder
    from speechbrain.nnet import attention

    x, state = torch.randn(2, 12, 32), torch.randn(2, 16)
    lengths = torch.tensor([12, 9])
    positions = attention.RelPosEncXL(32)(x)
    encoder = {"num_layers": 2, "nhead": 4, "d_ffn": 16, "d_model": 32}
    of_kind = lambda kind: TransformerEncoder(**encoder, attention_type=kind)  # noqa: E731
    return {
        "ContentBasedAttention": lambda: called(attention.ContentBasedAttention(32, 16, 8, 8), x, lengths, state),
        "LocationAwareAttention": lambda: called(
            attention.LocationAwareAttention(32, 16, 8, 8, 4, 3), x, lengths, state
        ),
        "KeyValueAttention": lambda: called(attention.KeyValueAttention(32, 16, 8, 8), x, lengths, state),
        "RelPosMHAXL": lambda: called(attention.RelPosMHAXL(32, 4), x, x, x, positions),
        "RelPosMHAXL, masked": lambda: called(
            attention.RelPosMHAXL(32, 4), x, x, x, positions, key_padding_mask=torch.arange(12) >= lengths[:, None]
        ),
        "RoPEMHA": lambda: called(attention.RoPEMHA(32, 4), x, x, x),
        "MultiheadAttention": lambda: called(attention.MultiheadAttention(4, 32), x, x, x),
        "TransformerEncoder": lambda: called(of_kind("regularMHA"), x),
        "TransformerEncoder, relative": lambda: called(of_kind("RelPosMHAXL"), x, pos_embs=positions),
        "TransformerEncoder, hypermixing": lambda: called(of_kind("hypermixing"), x),
        "TransformerDecoder": lambda: called(TransformerDecoder(2, 4, 16, 32), x, x),
        "ConformerEncoder": lambda: called(ConformerEncoder(2, 32, 16, 4), x, pos_embs=positions),
        "BranchformerEncoder": lambda: called(
            BranchformerEncoder(2, 32, 4, csgu_linear_units=16, kernel_size=3), x, pos_embs=positions
        ),
    }
