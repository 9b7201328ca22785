"""What both kinds of feeds have to know of their two sources, the socket and REST."""
