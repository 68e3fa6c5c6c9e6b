"""Runs in each worker of a cell's run, with the kernel's interpreter; may import nothing.

Makes the cell ``__main__`` and gives it its share of the episodes.  The kernel's libraries are used
if its environment has them.  Events go as JSON lines to the pipe ``GPUGATE_EVENTS_FD``; the cell's
output stays on stdout and stderr.  Exit code 0: the cell ended; 1: after an ``error`` event; else
the cell's own.

A process that the cell starts by spawn or forkserver executes ``__main__.py`` as ``__mp_main__``,
and of the cell only the definitions that it needs: `child.Definitions`.
"""
