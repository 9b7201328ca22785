"""All state machines and rules of the relay. Pure."""
