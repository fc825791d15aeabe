"""The sections of the page, one module each."""
