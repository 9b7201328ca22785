"""One module per exchange dialect: request parameters in, answer bodies out."""
