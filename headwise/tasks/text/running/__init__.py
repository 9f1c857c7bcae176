"""Continuous batching: texts that are generated at the same time, each of which begins and ends at any step."""
