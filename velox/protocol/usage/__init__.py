"""What a reply says of its usage: found in its bytes, in one meaning for all vendors."""
