"""Runs in tests and benchmarks; may import core, gate.

The same gate without a machine.
"""
