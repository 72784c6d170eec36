"""natsproxy: a protocol-aware proxy and traffic recorder for NATS.

The packages, from the lowest floor up: `wire` (bytes to frames), `protocol` (the meaning of frames), `rules`
and `session` (one connection as a state machine), `capture` and `config`, `net` (the only I/O on the traffic
path), `replay` and `spark` (uses of captures), `testing` and `cli` (the interfaces for users).  Imports go
down only.

To follow a frame through the proxy, start at `net/proxy.py`.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
