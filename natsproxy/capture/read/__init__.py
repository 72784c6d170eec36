"""Segment files to blocks, items and frames."""
