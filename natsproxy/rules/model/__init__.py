"""The parts of a rule: selector, gate, verdicts, the seeded random numbers."""
