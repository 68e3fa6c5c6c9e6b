"""Runs in any process; may import nothing.

What the gate decides: pure functions over frozen values, standard library only.
"""
