"""Runs in notebook kernels; may import client, faces, places.

The magics, the live card, the panel, and a handle on a run.
"""
