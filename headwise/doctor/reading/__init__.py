"""One forward, operation by operation, with marks on what met in every product: what a module computes, read off."""
