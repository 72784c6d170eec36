"""Playing the clients of a capture to a live server."""
