"""A diagnosis in words, and as SARIF for code review."""
