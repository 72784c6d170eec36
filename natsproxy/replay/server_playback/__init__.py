"""Playing the server of a capture to live clients."""
