"""The services of the suite; each subpackage is one process."""
