"""`python -m natsproxy`; and what `spark-submit` is given, which takes files only."""

import sys
from pathlib import Path

if sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # run as a file: our modules are no top-level modules

from natsproxy.cli import main

main()
