"""Statements about a recorded history, each with the frames that prove it.

Input: captures.  Output: `Statement`s: what went wrong between a client and its server, or that a recording
is too partial to tell.
"""
