"""Runs in any process; may import core.

Answers for people and programs: snapshot, reasons, expected starts, inputs of a decision.
"""
