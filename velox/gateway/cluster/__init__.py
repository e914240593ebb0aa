"""Which upstream gets a request, and what follows an attempt: stages, members, waiting, retries, hedging."""
