"""Options, one a file: `system/option=<name>` chooses one; see `c2c.policies.option`."""

from c2c.serving.options import first_token, forecast, polled_router, time_to_live

__all__ = ["first_token", "forecast", "polled_router", "time_to_live"]
