"""Programs that we start and end: the user's, and nats-server.

Input: a command.  Output: its exit code; nothing of it is left behind.
"""
