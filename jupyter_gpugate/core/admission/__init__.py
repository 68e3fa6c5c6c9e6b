"""Runs in any process; may import core, core.memory, core.learning.

Which queued runs start, where, in which order, and which can never start.
"""
