"""Runs in any process; may import core, core.memory.

What earlier runs have shown, and what the next one will need.
"""
