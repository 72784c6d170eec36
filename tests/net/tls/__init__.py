"""Tests of TLS on both legs."""
