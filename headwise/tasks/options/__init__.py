"""What can be chosen for each task, one dataclass a task. Nothing here imports torch."""
