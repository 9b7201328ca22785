"""Users' functions (UDFs): which are to run, and what the Spark driver says about them."""
