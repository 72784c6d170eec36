"""A folder for PYTHONPATH of the programs of a sweep, whatever Python they run on: standard library only."""
