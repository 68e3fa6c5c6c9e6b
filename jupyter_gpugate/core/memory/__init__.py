"""Runs in any process; may import core.

The holders of the memory in a sample, and what follows from it for each run.
"""
