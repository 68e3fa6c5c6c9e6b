"""Runs in the gate; may import core, gate.

Measures the machine, grants leases, keeps the journal.
"""
