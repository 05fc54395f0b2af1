"""Starting a run on this machine. A launcher only starts processes and watches them; everything else meets at the controller."""
