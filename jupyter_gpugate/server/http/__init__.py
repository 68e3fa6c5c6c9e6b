"""Runs in a Jupyter server or `gpugate serve`; may import core, faces, gate, runs, server.

The user API: its calls, their bodies and their answers.
"""
