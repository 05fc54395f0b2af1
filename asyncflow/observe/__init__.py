"""What a run leaves behind: an append-only event log, one line of metrics a step, a summary, and a checker that believes none of them."""
