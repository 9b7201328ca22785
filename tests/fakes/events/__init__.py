"""The providers of user events' channels, on loopback: they check what real ones check, and answer as they are told."""
