"""Generated from protos/kvatlas/v1 by `make protos`; do not edit."""
