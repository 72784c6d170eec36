"""Items to blocks to segment files."""
