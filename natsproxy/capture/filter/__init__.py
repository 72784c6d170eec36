"""The selection of recorded traffic, and the removal of secrets."""
