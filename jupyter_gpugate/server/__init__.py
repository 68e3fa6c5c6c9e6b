"""The face of a Jupyter server, and a host without one."""
