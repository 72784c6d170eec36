"""The format on disk: blocks, and the items in them."""
