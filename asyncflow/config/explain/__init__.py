"""What a configuration means: every number that a run derives from it, asked of the very functions that the run asks. Nothing is started."""
