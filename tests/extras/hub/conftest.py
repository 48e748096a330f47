"""A proxy of a hub with a provider behind it, a server of tools, and a policy that is root's."""

from tests.extras.hub.proxies import hub, serving
from tests.safety.test_policy_of_root import prefix
from tests.tools.mcp.conftest import known, with_server

__all__ = ["hub", "known", "prefix", "serving", "with_server"]
