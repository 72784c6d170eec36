"""A capture as a conversation: steps, causes, exchanges, identifiers, matching."""
