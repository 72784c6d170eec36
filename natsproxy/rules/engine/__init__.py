"""The rules at work: the chain of a proxy and the rules of one connection."""
