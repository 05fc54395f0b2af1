"""Frameworks that bring their own orchestration, over this library. The one corner that may import vLLM or verl."""
