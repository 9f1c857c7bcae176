"""Training of a task: the loop, batches, the optimiser, several processes, the run folder."""
