"""The ways out of the gateway: each module is one channel, on a library of its own."""
