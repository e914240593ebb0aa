"""Which upstream gets a request, and what follows an attempt: levels, members, waiting, retries, hedging."""
