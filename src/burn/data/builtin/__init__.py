"""Images that need no download: digits, and drawn scenes with boxes."""
