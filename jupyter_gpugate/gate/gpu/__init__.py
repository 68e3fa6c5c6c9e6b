"""Runs in the gate, and `child` in a process of its own; may import core, gate.clock, proc.

GPUs: a reader whose child process alone calls the driver, and checks of its answers.
"""
