"""Cassettes: record modes, and merging of new episodes."""
