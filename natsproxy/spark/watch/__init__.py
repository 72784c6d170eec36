"""The watch: tables that are written while captures grow."""
