"""Client keys and certificates while a gateway runs: files that change, managed keys, what workers follow."""
