"""Runs in notebook kernels and terminals; may import core.codec.

The way to the gate for notebooks, terminals and scripts.
"""
