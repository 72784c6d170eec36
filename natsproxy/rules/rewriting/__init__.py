"""Rewriting of subjects, in both directions."""
