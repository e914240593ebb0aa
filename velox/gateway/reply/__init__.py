"""What a reply passes on its way to the client: the filters, their order, errors, addresses, header fields."""
