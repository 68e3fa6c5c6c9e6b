"""Runs in any process; may import core.

From one state to the next: a tick, the transitions, and limits that have passed.
"""
