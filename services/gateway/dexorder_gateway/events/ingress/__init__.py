"""Messages of containers, from the sockets to the delivery rules."""
