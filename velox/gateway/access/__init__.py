"""Who asks, for what: endpoints, the plan of a request, what a key may do, and whose objects are named."""
