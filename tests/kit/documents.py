"""The documents for users: the README and the guides.  Tests run what they print."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
CLUSTERS: Final = ROOT / "deploy" / "spark.md"
"""Its commands need clusters: `tests/cli/test_analyze.py` parses them."""
DOCUMENTS: Final = (README, *sorted((ROOT / "deploy").glob("*.md")), ROOT / ".github" / "CONTRIBUTING.md")
TEXT: Final = "\n".join(path.read_text() for path in DOCUMENTS if path != CLUSTERS)
"""The text of those whose commands run on one machine."""


def blocks(language: str) -> list[str]:
    """Return the blocks of a language, in the order of the documents."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", TEXT, re.DOTALL | re.MULTILINE)
    return [dedent(block) for block in found]
