"""Lower precision for ONNX graphs: float16, and int8 weights."""

from __future__ import annotations

import logging
from pathlib import Path

SAYS = {  # notes for the card; fp32 needs no note
    "fp16": "Weights and computation are float16, inputs and outputs float32; on most processors this is slower.",
    "int8": "Weight matrices are int8 with a scale per column, embeddings uint8 with one scale; the rest is float32.",
}


def quantize(path: Path, out: Path, *, external: bool) -> None:
    """Quantise an ONNX file dynamically: weight matrices in int8 with a scale per column, activations in uint8 with
    a scale computed at run time. Norms, softmaxes and query-key products stay float32.

    Every weight of a product lies within ±64, half of what int8 holds: on x86 without VNNI ONNX Runtime adds two
    products in 16 bits, which 255 · 64 · 2 fits. So the sums are exact, and the same on every processor. How near the
    outputs must be to the model's is `TOLERANCES` of check.py.

    Args:
        path: an ONNX file in float32.
        out: the file to write.
        external: whether the weights go into a separate file.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of weights: quantisation transposes weights, and would then reject them
    logger = logging.getLogger()  # the root logger, where quantisation logs advice that does not apply
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        quantize_dynamic(
            model,
            out,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logger.setLevel(level)
