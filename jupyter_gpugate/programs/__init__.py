"""Runs in supervisors and workers; may import nothing.

Programs that run alone, from a copy: each imports the standard library and, by relative imports,
itself.
"""
