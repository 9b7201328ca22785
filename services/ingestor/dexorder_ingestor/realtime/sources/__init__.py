"""Facts about the two sources of both kinds of feeds, the socket and REST."""
