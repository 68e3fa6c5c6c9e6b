"""The kernel's side: magics, client, card."""
