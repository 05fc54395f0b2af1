"""Which split of the devices is best, before money is spent: cost tables, a simulation without overhead, and advice from both."""
