"""Runs in the interpreter of a run; may import nothing.

Hashes the code that a run executes and lists the packages that it imports.
"""
