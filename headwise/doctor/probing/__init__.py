"""Runs of a copy under fixed dice, and what changes when something is changed: what the behavioural checks ask."""
