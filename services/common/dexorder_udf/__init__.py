"""Kapacitor's protocol for user-defined functions (UDFs): its rules, the host that runs functions, and the wire format.

The given messages are in ``protos/vendor/udf/udf.proto``. A *host* feeds points to a function and takes its output; an
*agent* is the side of the function (`dexorder.udf`). Modules with "Pure." in the docstring are the rules.
"""
