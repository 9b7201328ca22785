"""ZeroMQ: frames of each port, CURVE, the TCP proxy in front of libzmq."""
