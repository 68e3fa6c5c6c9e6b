"""Runs in Jupyter or `gpugate serve`; may import core, gate, places, proc, runs, server.http.

The two processes that can host a gate.
"""
