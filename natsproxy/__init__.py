"""natsproxy: a protocol-aware proxy and traffic recorder for NATS."""

__version__ = "0.1.0"
__all__ = ["__version__"]
