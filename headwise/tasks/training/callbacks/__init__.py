"""Callbacks beside the steps of a training, one per file: saving, stopping, reporting, drawing."""
