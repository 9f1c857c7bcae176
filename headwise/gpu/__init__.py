"""Statistics of the weights on a GPU, by kernels in Triton."""
