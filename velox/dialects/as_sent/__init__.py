"""Bodies that go up in the client's own dialect: what the target refuses is left out, renamed, or a 400."""
