"""Runs in a terminal; may import client, faces, and when used gate, server.

`jupyter gpugate`: its commands, and a terminal that waits for its run.
"""
