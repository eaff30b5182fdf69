"""Many instances: campaigns, the store that keeps their answers, and the processes that find them."""
