"""What campaigns have learnt about techniques, kept in a file from one to the next."""
