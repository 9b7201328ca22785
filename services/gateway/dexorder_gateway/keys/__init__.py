"""Keys that callers give to records, so that a repeated call at any gateway does not write again (decision 94)."""
