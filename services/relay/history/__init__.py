"""Everything the relay knows in memory, and the rules that change it. Pure; no I/O, time passed in.

``state.py`` has what there is; the modules beside it are functions on it. What changes something that must survive adds
statements to the batch it is given; the caller makes the batch durable before it lets anyone outside see the change.
"""
