"""Set-up of what pip cannot install: a Java runtime and the jars of Spark and Kafka."""
