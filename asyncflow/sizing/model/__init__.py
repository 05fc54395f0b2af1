"""The simulated machine, one file a part: what each does with its time, and nothing of what messages, copies and wake-ups cost."""
