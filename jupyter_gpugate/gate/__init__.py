"""The gate: measures the machine, grants leases, keeps the journal."""
