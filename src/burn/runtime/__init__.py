"""Access to the machine and the operating system: devices, processes, signals, streams."""
