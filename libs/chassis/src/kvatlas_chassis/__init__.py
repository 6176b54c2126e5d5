"""The parts that every service shares: settings, logs, metrics, health, start and stop."""

from kvatlas_chassis.admin import AdminServer
from kvatlas_chassis.config import ServiceSettings, Settings, load_settings
from kvatlas_chassis.errors import FatalError, SettingsError
from kvatlas_chassis.lifecycle import StopSignal, announce_ready, run_service
from kvatlas_chassis.log_rate_limiter import LogRateLimiter
from kvatlas_chassis.logs import setup_logging
from kvatlas_chassis.net import HostPort
from kvatlas_chassis.tasks import TaskSet

__all__ = [
    "AdminServer",
    "FatalError",
    "HostPort",
    "LogRateLimiter",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "StopSignal",
    "TaskSet",
    "announce_ready",
    "load_settings",
    "run_service",
    "setup_logging",
]
