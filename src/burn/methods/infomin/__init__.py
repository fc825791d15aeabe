"""InfoMin."""
