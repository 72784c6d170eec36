"""Code for the programs of a sweep, whatever Python and Node they run on: it tells where they hang.

A folder for PYTHONPATH, and a module that NODE_OPTIONS requires; both need the standard library only.
"""
