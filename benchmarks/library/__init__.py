"""An exported library proven where it is installed, operator by operator."""
