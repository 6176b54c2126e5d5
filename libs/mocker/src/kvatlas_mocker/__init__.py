"""Simulated inference engines, live at the interfaces of vLLM."""
