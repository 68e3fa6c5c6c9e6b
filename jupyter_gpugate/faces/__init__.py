"""Runs in notebook kernels, terminals and servers; may import core.run_spec.

Pure functions from the JSON of the API to text and HTML.
"""
