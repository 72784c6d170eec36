"""Rules files: TOML or JSON to rules and back."""
