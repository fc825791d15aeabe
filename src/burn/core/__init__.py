"""Plain values, files, settings and errors that all packages use, without torch."""
