"""The description of the format of PyTorch programs for `headwise export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.export.format import Format, Option
from headwise.language import Sentence

if TYPE_CHECKING:
    from headwise.export.manifest import GraphFile, Manifest


def _call(graph: GraphFile) -> list[str]:
    from headwise.export.torch.programs import PACKAGE

    if graph.file.endswith(PACKAGE):
        return []
    inputs = ", ".join(f'values["{value.name}"]' for value in graph.inputs)
    outputs = ", ".join(f'"{value.name}"' for value in graph.outputs)
    lines = [f'program = torch.export.load("{graph.file}").module()']
    if len(graph.outputs) == 1:
        return [*lines, f"values[{outputs}] = program({inputs})"]
    return [*lines, f"values |= zip([{outputs}], program({inputs}))"]


def _more(manifest: Manifest) -> list[str]:
    from headwise.export.torch.programs import PACKAGE

    packages = [graph.file for graph in manifest.graphs if graph.file.endswith(PACKAGE)]
    load = f'torch._inductor.aoti_load_package("{packages[0]}")' if packages else ""
    told = Sentence("Load an AOTInductor package with `{load}`. Its inputs must be contiguous.")
    return [told.format(load=load)] if packages else []


TORCH = Format(
    name="torch",
    title="PyTorch program",
    function="headwise.export.torch.export:write",
    precisions=("fp32", "bf16", "fp16"),
    imports=("import torch",),
    array="torch.tensor",
    call=_call,
    more=_more,
    options=(Option("aoti", "Compile AOTInductor packages. Default: if a C++ compiler is found."),),
    weights=True,
    examples=True,
)
