"""A queue under load whose processes are killed all the time, and what is true of it afterwards. `make soak`; no part of the tests of CI."""
