"""Installation of a Java runtime and the jars of Spark and Kafka, which pip can't install."""
