"""Captures as tables on Spark."""
