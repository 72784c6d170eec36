"""Settings: typed, layered, with where each value came from."""
