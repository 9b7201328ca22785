"""Triggers: the engine beside the tables' queries, in its own process, with a journal of its micro-batches."""
