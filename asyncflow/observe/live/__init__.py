"""What a person sees of a run while it goes on, in its own terminal or another: read off the run's files and the controller's status."""
