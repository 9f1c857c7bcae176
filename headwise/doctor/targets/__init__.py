"""What is examined: a class in a file or package, or the layers of a model; in this process or in a separate one."""
