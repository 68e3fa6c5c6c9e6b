"""Runs in a Jupyter server or `gpugate serve`; may import core, gate, runs, server.http.

The two processes that can host a gate.
"""
