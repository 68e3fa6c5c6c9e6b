"""Runs in any process; may import core, core.memory, core.learning, core.admission,
core.explaining.

From one state to the next: a tick, the transitions, and limits that have passed.
"""
