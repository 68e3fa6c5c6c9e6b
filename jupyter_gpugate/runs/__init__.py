"""Runs in the run side; may import core, places, proc, programs.

Keeps specs and starts runs, always under the submitting user's uid.
"""
