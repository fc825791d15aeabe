"""Features of any collection as parquet: a network, the parts of the data, the files."""
