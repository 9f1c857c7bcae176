"""Training of a task: the loop, batches, optimiser, several processes, the run folder."""
