"""HTTP/2: two engines behind one interface, and the heads."""
