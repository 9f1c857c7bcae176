"""The computation of each model as functions of named tensors, for exporters and runtimes; no format is known here.

One file per kind of model: `graphs(model)`, and, where a session cannot simply replace `forward`,
`run_on(model, sessions)`, with which a runtime that runs these graphs takes over the model's computation.
"""
