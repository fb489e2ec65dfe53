"""Sources to artifacts: which language, which compiler, ahead of the run, in the walls."""
