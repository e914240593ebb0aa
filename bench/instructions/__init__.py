"""How many instructions a request costs, counted by valgrind and compared with kept figures (README.md)."""
