"""Built-in images that need no download: handwritten digits, and scenes of digits with boxes."""
