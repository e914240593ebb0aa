"""What clients and models speak: a reader and a writer for each dialect and direction, and the form between."""
