"""One prompt over many inputs, on whatever runs them."""
