"""A proxy of a hub, for whatever test puts a provider behind it."""

from tests.extras.hub.proxies import hub, serving

__all__ = ["hub", "serving"]
