"""Rules between settings, one file a subject. Each refuses with key, value, rule, consequence and fix."""
