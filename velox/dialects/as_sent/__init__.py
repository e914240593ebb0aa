"""Bodies that go up in the client's own dialect: what another provider or model of the same API refuses or has else."""
