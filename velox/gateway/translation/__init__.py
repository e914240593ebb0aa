"""A provider adapter prepares a request (Prepared) for the upstream's provider; a translator brings its reply back."""
