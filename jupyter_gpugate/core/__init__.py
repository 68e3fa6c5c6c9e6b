"""What the gate decides: pure functions over frozen values, standard library only."""
