"""What requests cost: a table that is shipped, a file of the user's own prices, and a cost in whole pico-dollars."""
