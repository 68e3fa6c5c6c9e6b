"""Runs in any process; may import core.

What the gate decides: pure functions over frozen values, standard library only.
"""
