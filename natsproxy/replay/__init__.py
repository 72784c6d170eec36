"""Captures come alive: play the server to clients, play the clients to a server, compare what happened."""
