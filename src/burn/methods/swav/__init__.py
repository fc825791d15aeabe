"""SwAV."""
