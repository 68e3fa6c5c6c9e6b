"""Runs in notebook kernels and terminals; may import core.ready_url, core.run_spec, places,
proc, programs.worker.

The way to the gate for notebooks, terminals and scripts.
"""
