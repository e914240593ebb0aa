"""JSON without a tree of it: the few fields that are asked for, changes in place, and how large it is."""
