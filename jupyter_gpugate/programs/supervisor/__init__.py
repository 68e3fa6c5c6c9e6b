"""Runs in the supervisor of each run; may import nothing.

The parent of one run's process tree: it starts, measures and stops it, and records the end.
"""
