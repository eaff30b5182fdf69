"""The independent checker: replays certificates in ball arithmetic, sharing no code with what wrote them."""
