"""The scores of each kind of task, beside those of what is trivial."""
