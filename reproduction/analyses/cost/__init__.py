"""The cost of training, by method and by number of negatives."""
