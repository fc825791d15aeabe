"""Files that hold trained networks: burn's own and those of other projects."""
