"""Graphs, for exporters and runtimes of any format: each model's computation as one or several functions of tensors.

There is one file per kind of model, with `graphs(model)`. Where replacing `forward` is not enough, the file also has
`run_on(model, sessions)`: it lets a runtime that has loaded the graphs (as sessions) do the model's computation.
"""
