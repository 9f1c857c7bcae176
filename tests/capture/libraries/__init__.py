"""Models of other libraries under the watch."""
