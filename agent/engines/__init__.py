"""Where the loop's work runs: lanes that measure, and builds, in this process or on Ray."""
