"""Calls of a copy with fixed random numbers, and how the output changes with the input: the basis of probing checks."""
