"""How a task is trained and kept: the loop, batches, optimiser, several processes, the run folder."""
