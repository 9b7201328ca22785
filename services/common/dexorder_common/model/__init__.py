"""Values of the domain, without I/O: instruments, time ranges, errors."""
