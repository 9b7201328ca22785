"""Rules and reports of records that every reader of the topics shares: admission, positions, faults, reports."""
