"""Runs in notebook kernels and terminals; may import places, proc.

The way to the gate for notebooks, terminals and scripts.
"""
