"""The format "torch": graphs as `torch.export` programs and AOTInductor packages, which PyTorch runs alone."""
