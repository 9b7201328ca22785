"""The streaming pipeline: records of udsource become candles in Iceberg and results for the relay."""
