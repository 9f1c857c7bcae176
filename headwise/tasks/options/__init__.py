"""The options of each task, one dataclass per task. Nothing here imports torch."""
