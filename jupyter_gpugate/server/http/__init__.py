"""Runs in Jupyter or `gpugate serve`; may import core.codec, core.naming, core.samples, faces,
gate.clock, gate.port, places, proc, runs, server.

The user API: its calls, their bodies and their answers.
"""
