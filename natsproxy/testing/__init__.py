"""Proxies, faults and cassettes for the tests of NATS programs."""
