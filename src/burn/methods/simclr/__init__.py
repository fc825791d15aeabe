"""SimCLR."""
