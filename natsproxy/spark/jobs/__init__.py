"""The jobs that write tables."""
