"""Texts that are written side by side, each from its own beginning to its own end: continuous batching."""
