"""Spans of recordings, and where they go."""
