"""The native extension of kvatlas; the stub beside this file is its documentation."""

from kvatlas_native._native import *  # noqa: F403 - the stub names what there is
