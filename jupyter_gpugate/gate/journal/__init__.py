"""Runs in the gate; may import core, gate, places.

The gate's records on a local disk: the journal and the history of readings.
"""
