"""Users' functions (UDFs) on the stream: candles or trades in, rows of ``trading.udf_<name>`` out, exactly once.

Each UDF has its own thread in the driver (``stage``), its own position in the topic and its own table. A commit of the
table carries the rows, the position and the UDF's state together (``lake``). ``feed`` decides which points it gets.
"""
