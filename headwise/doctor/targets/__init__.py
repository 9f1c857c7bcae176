"""What is examined: a class of a file or package, the layers of a model, here or in a process of its own."""
