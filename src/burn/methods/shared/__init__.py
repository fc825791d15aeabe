"""Parts that several methods have in common."""
