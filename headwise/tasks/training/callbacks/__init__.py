"""Lightning callbacks of a training, one per file: they save, stop, report and draw."""
