"""The description of the format ONNX for `headwise export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.export.format import Format, Option

if TYPE_CHECKING:
    from headwise.export.manifest import GraphFile


def _call(graph: GraphFile) -> list[str]:
    return [
        f'session = onnxruntime.InferenceSession("{graph.file}")',
        "given = {each.name: values[each.name] for each in session.get_inputs()}",
        "values |= zip([each.name for each in session.get_outputs()], session.run(None, given))",
    ]


ONNX = Format(
    name="onnx",
    title="ONNX",
    function="headwise.export.onnx.export:write",
    precisions=("fp32", "fp16", "int8"),
    imports=("import numpy as np", "import onnxruntime"),
    array="np.array",
    call=_call,
    options=(
        Option(
            "attention",
            "Use the operator Attention, or the primitive operators it consists of. Default: auto.",
            ("auto", "op", "plain"),
        ),
    ),
    extra="export",
    weights=True,
    examples=True,
)
