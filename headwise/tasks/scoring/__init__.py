"""The scores of each kind of task, beside those of trivial baselines."""
