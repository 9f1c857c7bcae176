"""Numerical gradients in float64 against those of autograd."""
