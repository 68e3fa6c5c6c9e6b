"""Runs in any process; may import core.

Which queued runs start, where, in which order, and which can never start.
"""
