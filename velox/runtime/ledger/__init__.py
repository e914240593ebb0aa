"""The ledger's process: records, sums, alerts; and what is read of it before a gateway starts."""
