"""The native extension of kvatlas; see the stub for the surface."""
