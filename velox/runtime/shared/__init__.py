"""What several gateways keep together, in Redis or PostgreSQL: kept answers, owners and places of objects."""
