"""Output of a diagnosis: as text, and as SARIF for code review."""
