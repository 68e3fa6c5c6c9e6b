"""Runs in processes of their own; may import nothing.

Programs that run alone, from a copy: each imports the standard library and, by relative imports,
itself.
"""
