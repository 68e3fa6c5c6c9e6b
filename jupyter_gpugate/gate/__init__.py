"""Runs in the gate; may import core, gate.gpu, gate.journal, gate.machine, places, proc.

Measures the machine, grants leases, keeps the journal.
"""
