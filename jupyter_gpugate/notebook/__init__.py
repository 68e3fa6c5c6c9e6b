"""The kernel's side: magics, client, waiting."""
