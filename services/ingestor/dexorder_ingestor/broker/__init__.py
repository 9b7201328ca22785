"""Connection to the relay's broker (port 5567): dispatches in, slots offered, completions out."""
