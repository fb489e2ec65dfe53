"""What a candidate's source says before it runs: refused only for what is never legitimate."""
