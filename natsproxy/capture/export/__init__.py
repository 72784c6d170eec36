"""Captures for other tools: JSON lines, Parquet, pcapng."""
