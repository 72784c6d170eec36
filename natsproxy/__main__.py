"""`python -m natsproxy`."""

from natsproxy.cli import main

main()
