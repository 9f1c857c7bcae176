"""Graphs with smaller numbers: half precision, and weights of 8 bits."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from headwise.errors import ArgumentError

PRECISIONS = ("fp32", "fp16", "int8")
SAYS = {  # of each but the first
    "fp16": "Weights and computation are float16, inputs and outputs as before; on most processors that is slower.",
    "int8": "Matrices of weights and embeddings are int8, with a scale for each column; the rest is float32.",
}


def dtype_of(precision: str) -> torch.dtype:
    """What a graph of this precision is traced in: int8 begins with float32.

    Raises:
        ArgumentError: another word.
    """
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision: expected one of {', '.join(PRECISIONS)} for onnx, received {precision!r}")
    return torch.float16 if precision == "fp16" else torch.float32


def quantize(path: Path, out: Path, *, external: bool) -> None:
    """Dynamic quantisation by ONNX Runtime: matrices of weights in int8 with a scale for each column, what they meet
    in uint8 with a scale that is found while it runs. Norms, softmaxes and products of queries and keys stay float32.

    Args:
        path: of a model in float32.
        out: where to write.
        external: whether the weights go beside it.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of weights, which it turns around and then finds of another shape
    logger = logging.getLogger()  # the root, to which it gives advice that does not hold here
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        quantize_dynamic(
            model,
            out,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logger.setLevel(level)
