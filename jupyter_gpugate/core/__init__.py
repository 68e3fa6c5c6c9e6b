"""Runs in any process; may import nothing.

The decisions of the gate: pure functions over frozen values, standard library only.
"""
