"""Runs in tests and benchmarks; may import core, gate, gate.journal.

The same gate without a machine, and replays of whole workloads under any policy.
"""
