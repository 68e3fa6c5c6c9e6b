"""Runs in Jupyter or `gpugate serve`; may import core, faces, gate, places, runs, server.

The user API: its calls, their bodies and their answers.
"""
