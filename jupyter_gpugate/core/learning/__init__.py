"""Runs in any process; may import core.

What earlier runs have shown, and what the next one will need.
"""
