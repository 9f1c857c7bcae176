"""Predictions for the rows of a file, in chunks, so that the file may be larger than memory."""
