"""Two parties compute shares of functions of what each has, and nobody deals to them."""
