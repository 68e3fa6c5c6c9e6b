"""Runs in any process; may import core, core.learning, core.admission.

Answers for people and programs: snapshot, reasons, expected starts, inputs of a decision.
"""
