"""Tables, pictures and one page from results, without torch."""
