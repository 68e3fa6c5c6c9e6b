"""Runs in Jupyter or `gpugate serve`; may import core.codec, core.endings,
core.estimates, core.evidence, core.explaining.rows, core.naming, core.ready_url, core.reports,
core.requests, core.resources, core.run_spec, core.samples, core.state, faces, gate.clock,
gate.port, places, proc, runs, server.

The user API: its calls, their bodies and their answers.
"""
