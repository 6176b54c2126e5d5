"""The cell's indexers, as routing and the worker table ask them: an adapter of `kvatlas_client`."""
