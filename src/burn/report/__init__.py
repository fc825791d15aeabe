"""From results to tables, pictures and one page, without torch."""
