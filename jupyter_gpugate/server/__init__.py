"""Runs in Jupyter or `gpugate serve`; may import core.codec, core.endings,
core.explaining.rows, core.reports, core.resources, core.state, gate.clock,
gate.journal.local_disk, gate.kernel_name, gate.lock, gate.port, places, proc, runs, server.http.

The two processes that can host a gate.
"""
