"""Keys that callers give to records, so that a repeated call writes nothing again at any gateway (decision 94)."""
