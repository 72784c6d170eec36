"""The wire: bytes to frames and back.  No roles, no rules."""
