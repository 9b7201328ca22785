"""The realtime chain of the suite as processes of a run: relay, ingestors, log and table."""
