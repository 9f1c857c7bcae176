"""Graphs as programs of `torch.export`, and compiled by AOTInductor: what PyTorch runs without headwise."""
