"""Facts about exchanges, a module each under ccxt's id of the exchange."""
