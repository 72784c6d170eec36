"""What frames mean: pure functions and small immutable types over bytes.

No I/O, no clock, nothing above `wire`.
"""
