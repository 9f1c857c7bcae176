"""Graphs as `torch.export` programs and AOTInductor packages, which PyTorch runs without headwise."""
