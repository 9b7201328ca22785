"""PySpark data source ``udsource``: any source.v1 server as a stream or batch of records."""
