"""Runs in notebook kernels, terminals and servers; may import nothing.

Pure functions from the JSON of the API to text and HTML.
"""
