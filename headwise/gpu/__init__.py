"""Statistics of attention weights, computed on a GPU by kernels in Triton."""
