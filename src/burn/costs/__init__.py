"""What a network costs: parameters, operations, bytes and milliseconds, for `burn info`."""
