"""Runs in the gate; may import core, gate.clock, proc.

RAM, cgroups and the process table, read once a second.
"""
