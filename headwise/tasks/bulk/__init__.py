"""Predicts for the rows of a file chunk by chunk, so that the file may be larger than memory."""
