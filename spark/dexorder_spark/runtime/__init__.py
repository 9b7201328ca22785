"""Process of the driver: Spark session, Python workers, class archive, locks."""
