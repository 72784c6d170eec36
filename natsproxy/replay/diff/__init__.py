"""Comparing two conversations."""
