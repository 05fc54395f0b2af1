"""`asyncflow report`: a run's files → one typed record (`build`) → one self-contained page (`page`) and a trace for Perfetto (`trace`)."""
