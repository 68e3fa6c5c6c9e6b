"""Runs in any process; may import core, core.memory.

The observations of earlier runs, and the estimate of the next one.
"""
