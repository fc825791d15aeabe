"""What the machine and the operating system give: devices, processes, signals, streams."""
