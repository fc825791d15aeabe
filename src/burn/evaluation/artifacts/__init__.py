"""What an evaluation leaves besides its numbers."""
