"""The capture format: write, read, follow, recover."""
