"""What headwise computes on a GPU by kernels of its own, written in Triton: statistics of the weights."""
