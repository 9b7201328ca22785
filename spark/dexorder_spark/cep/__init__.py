"""Triggers: the engine beside the tables' queries, in a process of its own, with a journal of its micro-batches."""
